// Generation with a cache of keys and values says what the model says without one.
#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "device/device.h"
#include "generate/generate.h"
#include "ops/ops.h"

using namespace mtrain;
using generate::CachedModel;
using generate::KeyValueCache;

namespace {

constexpr int64_t kContext = 300, kSlots = 3;

model::GptConfig tiny(int64_t vocab = 61) {
  model::GptConfig c{};
  c.layers = 2, c.hidden = 48, c.heads = 4, c.kv_heads = 2, c.head_dim = 12, c.ffn = 80;
  c.vocab = vocab, c.padded_vocab = (vocab + 63) / 64 * 64, c.max_positions = kContext;
  c.init_std = 0.3f;
  return c;
}

model::GptConfig gpt2() {
  model::GptConfig c = tiny();
  c.kv_heads = 4, c.rotary = false, c.norm = kernels::NormKind::layer, c.gated_mlp = false;
  c.qkv_bias = c.proj_bias = c.linear_bias = c.tied_embeddings = true;
  return c;
}

model::GptConfig with_experts() {
  model::GptConfig c = tiny();
  c.experts.count = 4, c.experts.per_token = 2, c.experts.ffn = 40, c.experts.shared_ffn = 24;
  c.experts.layers = {false, true};
  return c;
}

// The same model twice: with a cache and without one.
struct Twins {
  explicit Twins(const model::GptConfig& c, DType dtype = DType::f32, int64_t slots = kSlots)
      : config(c), cache(slots, kContext), model(stream, *cached, cache) {
    for (model::ParamStore* params : {&plain_params, &cached_params}) {
      params->materialize(stream, dtype, false);
      params->initialize(stream, 7);
    }
  }

  // Returns the logits behind `ids`, computed from the first token on.
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
    logits.resize(size_t(config.vocab));
    return logits;
  }

  std::unique_ptr<Device> device = Device::cpu(2, {.stream_sanitizer = true});
  Stream& stream = device->stream(device::StreamKind::compute);
  model::GptConfig config;
  KeyValueCache cache;
  model::ModelImpls impls{.attention_core = cache.cores()};
  model::ParamStore plain_params, cached_params;
  std::unique_ptr<model::Gpt> plain =
      std::make_unique<model::Gpt>(stream, plain_params, config, kContext);
  std::unique_ptr<model::Gpt> cached = std::make_unique<model::Gpt>(
      stream, cached_params, config, kContext, model::Recompute{}, impls);
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

// Prompts of different lengths come in chunks; then all sequences go on one token at a time, with
// one of them ahead.
void check_greedy(const model::GptConfig& config, DType dtype) {
  Twins t(config, dtype);
  std::vector<std::vector<int32_t>> ids{some_ids(1, config.vocab, 5), some_ids(9, config.vocab, 2),
                                        some_ids(253, config.vocab, 11)};
  std::vector<int64_t> computed(3, 0);
  for (int step = 0; step < 30; ++step) {
    std::vector<generate::Piece> pieces;
    std::vector<size_t> of;
    for (size_t s = 0; s < ids.size(); ++s) {
      if (step % 7 == 3 && s == 1) continue;  // a sequence may pause
      const auto count = std::min<int64_t>(40, int64_t(ids[s].size()) - computed[s]);
      pieces.push_back(
          {int64_t(s), computed[s], std::span(ids[s]).subspan(size_t(computed[s]), size_t(count))});
      of.push_back(s);
    }
    const auto logits = t.model.forward(pieces);
    for (size_t i = 0; i < of.size(); ++i) {
      const size_t s = of[i];
      computed[s] += int64_t(pieces[i].ids.size());
      if (computed[s] < int64_t(ids[s].size())) continue;
      INFO("step " << step << " sequence " << s);
      const auto want = t.from_the_start(ids[s]);
      REQUIRE((logits[i] == want));  // every bit; in parentheses: the numbers are no message
      ids[s].push_back(likeliest(want));
    }
  }
  CHECK(ids[2].size() > 270);  // beyond a block of keys
}

}  // namespace

TEST_CASE("a cache gives the bits of whole sequences, and so the greedy tokens, in fp32 and bf16") {
  model::GptConfig window = tiny(), norms = tiny(), yarn = tiny(), one_head = tiny(),
                   outputs = tiny(), sandwich = with_experts(), capped = tiny();
  window.window = 37;
  model::GptConfig layers = tiny();
  layers.layers = 3, layers.window = 37, layers.local_rotary_base = 50;
  layers.window_layers = {true, false, true}, layers.rope_layers = {true, true, false};
  layers.score_scale = 0.5f, layers.score_cap = 2;
  norms.qk_norm = true;
  norms.rope_scaling = {model::RopeScaling::Kind::linear, 4};
  yarn.rotary_dim = 8;
  yarn.rope_scaling = {.kind = model::RopeScaling::Kind::yarn,
                       .factor = 4,
                       .original_positions = 80,
                       .attention_factor = 1.2};
  capped.gelu_gate = capped.tied_embeddings = true;
  capped.embedding_scale = 6.9f, capped.logit_cap = 2;
  one_head.kv_heads = 1, one_head.head_dim = 32;
  outputs.input_norms = false, outputs.output_norms = true;
  outputs.qk_norm = outputs.qk_norm_all_heads = true;
  sandwich.output_norms = sandwich.norm_plus_one = true;
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
    SECTION(std::string("experts ") + std::string(dtype_name(dtype))) {
      check_greedy(with_experts(), dtype);
    }
  }
}

TEST_CASE(
    "the logits of a generation are those under the cap, and grow with the embeddings' scale") {
  const auto logits_of = [](float cap, float scale) {
    model::GptConfig c = tiny();
    c.logit_cap = cap, c.embedding_scale = scale;
    Twins t(c);
    const auto ids = some_ids(12, 61, 3);
    return t.model.forward({{0, 0, ids}})[0];
  };
  const auto plain = logits_of(0, 1), capped = logits_of(2, 1), scaled = logits_of(0, 3);
  CHECK(scaled != plain);
  for (size_t i = 0; i < plain.size(); ++i)  // a few roundings of a number below 2
    CHECK(capped[i] == Approx(2 * std::tanh(double(plain[i]) / 2)).margin(2e-6));
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
  CHECK_THROWS_AS(t.model.forward({{0, 1, ids}}), BugError);  // nothing is at position 0
  CHECK_THROWS_AS(generate::KeyValueCache(1 << 16, 1 << 15), UserError);
}
