// Generation with a cache of keys and values gives the logits of the model without a cache.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "device/device.h"
#include "generate/generate.h"
#include "test/support/small_spec.h"

namespace generate_cache_test {

using namespace mtrain;
using generate::CachedModel;
using generate::KeyValueCache;

namespace {

constexpr int64_t kContext = 300, kSlots = 3;

constexpr int64_t kVocab = 61, kPaddedVocab = 64;

spec::ModelSpec tiny() {
  spec::ModelSpec m = small_spec(
      2, 48, kVocab, {.attention = rotating_heads(4, 2, 12), .mlp = spec::DenseMlp{.ffn = 80}});
  m.max_positions = kContext, m.init_std = 0.3;
  return m;
}

spec::ModelSpec gpt2() {
  spec::ModelSpec m = tiny();
  m.learned_positions = m.tied_embeddings = true;
  m.norm = {.kind = NormKind::layer, .bias = true};
  for (spec::LayerSpec& layer : m.layers) {
    layer.attention = spec::GroupedAttention{
        .heads = 4, .kv_heads = 4, .head_dim = 12, .qkv_bias = true, .proj_bias = true};
    layer.mlp = spec::DenseMlp{.ffn = 80, .activation = spec::Activation::gelu_tanh, .bias = true};
  }
  return m;
}

spec::ModelSpec with_experts() {
  spec::ModelSpec m = tiny();
  m.layers[1].mlp = spec::Experts{.count = 4, .per_token = 2, .ffn = 40, .shared_ffn = 24};
  return m;
}

// Latent attention as in DeepSeek-V3, or, without a rank of queries, as in DeepSeek-V2-Lite.
spec::ModelSpec latent(int64_t q_rank) {
  spec::ModelSpec m = with_experts();
  change_attention(m, [&](spec::GroupedAttention& a) {
    a.kv_heads = 4, a.head_dim = 20, a.value_head_dim = 14, a.rotary.dims = 8;
    a.latent = {.q_rank = q_rank, .kv_rank = 24, .rope_dim = 8};
  });
  return m;
}

// The same model twice: with a cache and without one.
struct Twins {
  explicit Twins(const spec::ModelSpec& m, DType dtype = DType::f32, int64_t slots = kSlots)
      : spec(m), cache(slots, kContext), model(stream, *cached, cache) {
    for (model::ParamStore* params : {&plain_params, &cached_params}) {
      params->materialize(stream, dtype, false);
      params->initialize(stream, 7);
    }
  }

  // Returns the logits after `ids`, computed from the first token on.
  std::vector<float> from_the_start(const std::vector<int32_t>& ids) {
    const auto S = int64_t(ids.size());
    std::vector<int32_t> position;
    for (int64_t i = 0; i < S; ++i) position.push_back(int32_t(i));
    model::MicroBatch batch;
    batch.input_T = Tensor::from_host(stream, {S}, ids);
    batch.seq = {.B = 1, .S = S, .position_T = Tensor::from_host(stream, {S}, position)};
    model::WgradQueue wgrad;
    model::Stash stash;
    model::Step step{
        .compute = stream, .wgrad = wgrad, .stash = &stash, .seq = batch.seq, .training = false};
    auto logits = plain->logits(step, batch).rows(S - 1, S).to_host<float>(stream);
    logits.resize(size_t(spec.vocab));
    return logits;
  }

  std::unique_ptr<Device> device = Device::cpu(2, {.stream_sanitizer = true});
  Stream& stream = device->stream(device::StreamKind::compute);
  spec::ModelSpec spec;
  KeyValueCache cache;
  model::ModelImpls impls{.attention_core = cache.cores(),
                          .latent_core = cache.latent_cores(),
                          .padded_vocab = kPaddedVocab};
  model::ParamStore plain_params, cached_params;
  std::unique_ptr<model::Gpt> plain =
      std::make_unique<model::Gpt>(stream, plain_params, spec, kContext, model::Recompute{},
                                   model::ModelImpls{.padded_vocab = kPaddedVocab});
  std::unique_ptr<model::Gpt> cached = std::make_unique<model::Gpt>(
      stream, cached_params, spec, kContext, model::Recompute{}, impls);
  CachedModel model;
};

int32_t likeliest(const std::vector<float>& logits) {
  return int32_t(std::ranges::max_element(logits) - logits.begin());
}

std::vector<int32_t> some_ids(int64_t count, int64_t vocab, int32_t first) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(int32_t((first + i * 17 + i * i) % vocab));
  return ids;
}

// Whether logits are as the model without a cache computes them: every bit of them, or numbers that
// differ as the order of sums does.
bool alike(const std::vector<float>& got, const std::vector<float>& want, bool every_bit) {
  if (every_bit) return got == want;
  for (size_t i = 0; i < want.size(); ++i)
    if (std::abs(got[i] - want[i]) > 2e-5f * (1 + std::abs(want[i]))) return false;
  return likeliest(got) == likeliest(want);
}

// Prompts of different lengths come in chunks; then all sequences continue one token at a time, one
// of them ahead of the others. `exact_singles`: also the tokens that are not of prompts have every
// bit.
void check_greedy(const spec::ModelSpec& model, DType dtype, bool exact_singles = true) {
  Twins t(model, dtype);
  std::vector<std::vector<int32_t>> ids{some_ids(1, kVocab, 5), some_ids(9, kVocab, 2),
                                        some_ids(253, kVocab, 11)};
  std::vector<int64_t> computed(3, 0);
  for (int step = 0; step < 30; ++step) {
    std::vector<generate::Piece> pieces;
    std::vector<size_t> of;
    const bool prompts = computed[2] < 253;
    for (size_t s = 0; s < ids.size(); ++s) {
      if (step % 7 == 3 && s == 1) continue;  // a sequence may pause
      const auto count = std::min<int64_t>(40, int64_t(ids[s].size()) - computed[s]);
      pieces.push_back({int64_t(s), computed[s],
                        std::span(ids[s]).subspan(size_t(computed[s]), size_t(count)), prompts});
      of.push_back(s);
    }
    const auto logits = t.model.forward(pieces);
    for (size_t i = 0; i < of.size(); ++i) {
      const size_t s = of[i];
      computed[s] += int64_t(pieces[i].ids.size());
      if (computed[s] < int64_t(ids[s].size())) continue;
      INFO("step " << step << " sequence " << s);
      const auto want = t.from_the_start(ids[s]);
      REQUIRE(alike(logits[i], want, exact_singles || prompts));
      ids[s].push_back(likeliest(want));
    }
  }
  CHECK(ids[2].size() > 270);  // beyond a block of keys
}

}  // namespace

TEST_CASE("a cache gives the bits of whole sequences, and so the greedy tokens, in fp32 and bf16") {
  using spec::GroupedAttention;
  spec::ModelSpec window = tiny(), norms = tiny(), yarn = tiny(), one_head = tiny(),
                  outputs = tiny(), sandwich = with_experts(), capped = tiny(), layers = tiny();
  change_attention(window, [](GroupedAttention& a) { a.window = 37; });
  layers.layers.push_back(layers.layers[0]);
  for (const size_t with_window : {0, 2}) {
    attention_of(layers.layers[with_window]).window = 37;
    attention_of(layers.layers[with_window]).rotary.base = 50;
  }
  attention_of(layers.layers[2]).rotary = {};
  change_attention(layers, [](GroupedAttention& a) { a.score_scale = 0.5, a.score_cap = 2; });
  change_attention(norms, [](GroupedAttention& a) {
    a.head_norm = spec::HeadNorm::each_head;
    a.rotary.scaling = {.type = spec::RopeScalingType::linear, .factor = 4};
  });
  change_attention(yarn, [](GroupedAttention& a) {
    a.rotary = spec::Rotary{.dims = 8,
                            .scaling = {.type = spec::RopeScalingType::yarn,
                                        .factor = 4,
                                        .original_positions = 80,
                                        .attention_factor = 1.2}};
  });
  capped.tied_embeddings = true, capped.embedding_scale = 6.9, capped.logit_cap = 2;
  capped.residual_scale = 0.4, capped.logit_scale = 0.3;
  for (spec::LayerSpec& layer : capped.layers)
    layer.mlp = spec::DenseMlp{.ffn = 80, .activation = spec::Activation::geglu};
  change_attention(one_head, [](GroupedAttention& a) { a = rotating_heads(4, 1, 32); });
  for (spec::LayerSpec& layer : outputs.layers)
    layer.input_norms = false, layer.output_norms = true;
  change_attention(outputs, [](GroupedAttention& a) { a.head_norm = spec::HeadNorm::all_heads; });
  for (spec::LayerSpec& layer : sandwich.layers) layer.output_norms = true;
  sandwich.norm.plus_one = true;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CAPTURE(dtype_name(dtype));
    SECTION(std::string("rotary, grouped heads ") + std::string(dtype_name(dtype))) {
      check_greedy(tiny(), dtype);
    }
    SECTION(std::string("a sliding window ") + std::string(dtype_name(dtype))) {
      check_greedy(window, dtype);
    }
    SECTION(std::string("windows and rotary positions of some layers, scale and cap of scores ") +
            std::string(dtype_name(dtype))) {
      check_greedy(layers, dtype);
    }
    SECTION(std::string("norms of heads, scaled rotary ") + std::string(dtype_name(dtype))) {
      check_greedy(norms, dtype);
    }
    SECTION(std::string("norms of outputs and of all heads ") + std::string(dtype_name(dtype))) {
      check_greedy(outputs, dtype);
    }
    SECTION(std::string("norms by 1 + weight around experts ") + std::string(dtype_name(dtype))) {
      check_greedy(sandwich, dtype);
    }
    SECTION(std::string("yarn on a part of each head ") + std::string(dtype_name(dtype))) {
      check_greedy(yarn, dtype);
    }
    SECTION(std::string("one head of keys ") + std::string(dtype_name(dtype))) {
      check_greedy(one_head, dtype);
    }
    SECTION(std::string("scaled embeddings, capped logits ") + std::string(dtype_name(dtype))) {
      check_greedy(capped, dtype);
    }
    SECTION(std::string("learned positions ") + std::string(dtype_name(dtype))) {
      check_greedy(gpt2(), dtype);
    }
    // A single token attends to latents, and sums in another order.
    for (const int64_t q_rank : {0, 16})
      SECTION(fmt::format("latents, queries of rank {} {}", q_rank, dtype_name(dtype))) {
        if (dtype == DType::f32) check_greedy(latent(q_rank), dtype, false);
      }
    SECTION(std::string("experts ") + std::string(dtype_name(dtype))) {
      check_greedy(with_experts(), dtype);
    }
  }
}

TEST_CASE(
    "the logits of a generation are those under the cap, and grow with the embeddings' scale") {
  const auto logits_of = [](float cap, float scale) {
    spec::ModelSpec m = tiny();
    m.logit_cap = cap, m.embedding_scale = scale;
    Twins t(m);
    const auto ids = some_ids(12, 61, 3);
    return t.model.forward({{0, 0, ids}})[0];
  };
  const auto plain = logits_of(0, 1), capped = logits_of(2, 1), scaled = logits_of(0, 3);
  CHECK(scaled != plain);
  for (size_t i = 0; i < plain.size(); ++i)  // a few roundings of a number below 2
    CHECK(capped[i] == Approx(2 * std::tanh(double(plain[i]) / 2)).margin(2e-6));
}

TEST_CASE("the cache of latent attention has a latent and the shared elements of each token") {
  const auto bytes = [](const spec::ModelSpec& m, DType dtype) {
    Twins t(m, dtype);
    const auto used = [&] {
      return t.device->allocator().usage(device::MemoryCategory::buffers).current;
    };
    const int64_t before = used();
    t.model.forward({{0, 0, some_ids(3, kVocab, 1)}});
    return used() - before;
  };
  const int64_t tokens = 2 * kSlots * kContext;  // of two layers
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [model, numbers] : {std::pair{latent(16), 24 + 8}, {tiny(), 2 * (12 + 12)}}) {
      // The allocator rounds the memory of a layer up to 512 bytes.
      const int64_t want = tokens * numbers * dtype_size(dtype), got = bytes(model, dtype);
      CHECK(got >= want);
      CHECK(got <= want + 2 * 512);
    }
}

TEST_CASE("a token of a prompt has the same bits whatever is computed beside it") {
  Twins t(latent(0));
  const auto ids = some_ids(9, kVocab, 3), other = some_ids(5, kVocab, 1);
  t.model.forward({{0, 0, std::span(ids).first(8), true}});
  const auto alone = t.model.forward({{0, 8, std::span(ids).last(1), true}})[0];
  t.model.forward({{1, 0, std::span(ids).first(8), true}});
  const auto beside =
      t.model.forward({{1, 8, std::span(ids).last(1), true}, {2, 0, other, true}})[0];
  CHECK((alone == beside));
  CHECK((alone == t.from_the_start(ids)));
}

TEST_CASE("a slot that is used again forgets its sequence") {
  Twins t(tiny(), DType::f32, 1);
  const auto first = some_ids(30, 61, 3), second = some_ids(12, 61, 40);
  t.model.forward({{0, 0, first}});
  CHECK((t.model.forward({{0, 0, second}})[0] == t.from_the_start(second)));
}

TEST_CASE("a cache refuses tokens that have no place in it") {
  Twins t(tiny());
  const auto ids = some_ids(10, 61, 3);
  CHECK_THROWS_AS(t.model.forward({{kSlots, 0, ids}}), BugError);
  CHECK_THROWS_AS(t.model.forward({{0, kContext - 9, ids}}), BugError);
  CHECK_THROWS_AS(t.model.forward({{0, 1, ids}}), BugError);  // position 0 has no token
  CHECK_THROWS_AS(generate::KeyValueCache(1 << 16, 1 << 15), UserError);
}

}  // namespace generate_cache_test
