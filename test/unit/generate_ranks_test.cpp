// Ranks that share a model's layers generate the text of one rank.
#include <cmath>
#include <mutex>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "generate/cached_model.h"
#include "parallel/apply_parallelism.h"
#include "test/support/comm_testing.h"
#include "test/support/small_spec.h"

namespace generate_ranks_test {

using namespace mtrain;

namespace {

constexpr int64_t kVocab = 61, kContext = 40;

spec::ModelSpec model_of(int64_t kv_heads, bool experts) {
  spec::LayerSpec layer{.attention = rotating_heads(4, kv_heads, 8),
                        .mlp = spec::DenseMlp{.ffn = 48}};
  if (experts) layer.mlp = spec::Experts{.count = 4, .per_token = 2, .ffn = 40};
  spec::ModelSpec m = small_spec(2, 32, kVocab, layer);
  m.init_std = 0.2;
  return m;
}

// Returns the logits of a prompt's last token and of the next few tokens, one after the other.
std::vector<float> logits_of(comm::World& world, Device& device, const spec::ModelSpec& m) {
  Stream& stream = device.stream(device::StreamKind::compute);
  generate::KeyValueCache cache(2, kContext);
  model::ModelImpls impls = parallel::share_layers(world, device, m);
  impls.attention_core = cache.cores();
  impls.latent_core = cache.latent_cores();
  model::ParamStore params;
  model::Gpt gpt(stream, params, m, kContext, {}, impls);
  params.materialize(stream, DType::f32, false);
  params.initialize(stream, 5);
  generate::CachedModel model(stream, gpt, cache);
  const std::vector<int32_t> first{5, 9, 60, 3, 3, 8, 1}, second{7, 7};
  std::vector<float> all;
  const auto add = [&](const std::vector<std::vector<float>>& rows) {
    for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  };
  add(model.forward({{0, 0, first}, {1, 0, second}}));
  for (int32_t i = 0; i < 4; ++i) {
    const std::vector<int32_t> next{i * 11, i + 2};
    add(model.forward({{1, 2 + i, std::span(next).first(1)}, {0, 7 + i, std::span(next).last(1)}}));
  }
  return all;
}

}  // namespace

TEST_CASE("ranks that share layers have one rank's logits, all of them the same") {
  enum Kind { plain, experts, all_heads, geglu, latent };
  for (const auto& [ranks, kv_heads, kind] : {std::tuple{2, 4, plain},
                                              {2, 2, plain},
                                              {4, 2, plain},
                                              {2, 1, plain},
                                              {2, 2, experts},
                                              {4, 2, all_heads},
                                              {4, 4, geglu},
                                              {2, 4, latent}}) {
    CAPTURE(ranks, kv_heads, int(kind));
    spec::ModelSpec m = model_of(kv_heads, kind == experts);
    for (spec::LayerSpec& layer : m.layers) {
      if (kind == all_heads) {
        layer.input_norms = false, layer.output_norms = true;
        attention_of(layer).head_norm = spec::HeadNorm::all_heads;
      }
      if (kind == latent) {
        spec::GroupedAttention& a = attention_of(layer);
        a.head_dim = 12, a.value_head_dim = 10, a.rotary.dims = 4;
        a.latent = {.q_rank = 16, .kv_rank = 20, .rope_dim = 4};
      }
      if (kind == geglu)
        layer.mlp = spec::DenseMlp{.ffn = 48, .activation = spec::Activation::geglu};
    }
    if (kind == geglu) m.embedding_scale = 5.7, m.logit_cap = 1.5;
    comm::World alone = comm::World::alone();
    const auto device = Device::cpu(1);
    const std::vector<float> want = logits_of(alone, *device, m);
    std::mutex mutex;
    std::vector<std::vector<float>> got;
    run_ranks(ranks, "thread", [&](TestRank& rank) {
      auto logits = logits_of(rank.world, rank.device, m);
      const std::lock_guard lock(mutex);
      got.push_back(std::move(logits));
    });
    for (const auto& logits : got) {
      REQUIRE((logits == got[0]));
      REQUIRE(logits.size() == want.size());
      for (size_t i = 0; i < want.size(); ++i)
        REQUIRE(std::abs(logits[i] - want[i]) <= 1e-5f * (1 + std::abs(want[i])));
    }
  }
}

TEST_CASE("ranks that do not divide a model are refused, with the number that does not fit") {
  const auto refuse = [](const spec::ModelSpec& m, const char* what) {
    CHECK_THROWS_WITH(
        run_ranks(2, "thread",
                  [&](TestRank& rank) { parallel::share_layers(rank.world, rank.device, m); }),
        Catch::Contains(what));
  };
  spec::ModelSpec heads = model_of(1, false), ffn = model_of(2, false), expert = model_of(2, true);
  attention_of(heads.layers[0]).heads = 3;
  std::get<spec::DenseMlp>(ffn.layers[1].mlp).ffn = 47;
  std::get<spec::Experts>(expert.layers[1].mlp).ffn = 39;
  refuse(heads, "2 ranks cannot share a model of 3 attention heads");
  refuse(ffn, "47 elements in a feed-forward layer");
  refuse(expert, "39 elements in an expert");
}

}  // namespace generate_ranks_test
