// Ranks that share a model's layers generate the text of one rank.
#include <cmath>
#include <mutex>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "comm_testing.h"
#include "generate/cached_model.h"
#include "parallel/apply_parallelism.h"

using namespace mtrain;

namespace {

constexpr int64_t kVocab = 61, kContext = 40;

plan::ModelShape shape(int64_t kv_heads, int64_t experts) {
  plan::ModelShape m;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = kv_heads, m.head_dim = 8, m.ffn = 48;
  m.vocab = kVocab;
  m.experts.count = experts, m.experts.per_token = 2, m.experts.ffn = 40;
  m.experts.layers = {experts > 0, experts > 0};
  return m;
}

model::GptConfig config_of(const plan::ModelShape& m) {
  model::GptConfig c{};
  c.layers = m.layers, c.hidden = m.hidden, c.heads = m.heads, c.kv_heads = m.kv_heads;
  c.head_dim = m.head_dim, c.ffn = m.ffn, c.vocab = m.vocab, c.padded_vocab = 64;
  c.max_positions = kContext, c.init_std = 0.2f;
  c.gelu_gate = m.gelu_gate, c.logit_cap = float(m.logit_cap);
  c.embedding_scale = float(m.embedding_scale);
  c.experts.count = m.experts.count, c.experts.per_token = m.experts.per_token;
  c.experts.ffn = m.experts.ffn;
  c.input_norms = m.input_norms, c.output_norms = m.output_norms;
  c.qk_norm = m.qk_norm, c.qk_norm_all_heads = m.qk_norm_all_heads;
  return c;
}

// Returns the logits of a prompt's last token and of the next few tokens, one after the other.
std::vector<float> logits_of(comm::World& world, Device& device, const plan::ModelShape& m) {
  Stream& stream = device.stream(device::StreamKind::compute);
  generate::KeyValueCache cache(2, kContext);
  model::ModelImpls impls = parallel::share_layers(world, device, m);
  impls.attention_core = cache.cores();
  model::ParamStore params;
  model::Gpt gpt(stream, params, config_of(m), kContext, {}, impls);
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
  for (const auto& [ranks, kv_heads, experts, all_heads] : {std::tuple{2, 4, 0, false},
                                                            {2, 2, 0, false},
                                                            {4, 2, 0, false},
                                                            {2, 1, 0, false},
                                                            {2, 2, 4, false},
                                                            {4, 2, 0, true},
                                                            {4, 4, -1, false}}) {
    CAPTURE(ranks, kv_heads, experts, all_heads);
    plan::ModelShape m = shape(kv_heads, std::max(experts, 0));
    m.input_norms = !all_heads, m.output_norms = m.qk_norm = m.qk_norm_all_heads = all_heads;
    if (experts < 0) m.gelu_gate = true, m.embedding_scale = 5.7, m.logit_cap = 1.5;
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
  const auto refuse = [](plan::ModelShape m, const char* what) {
    CHECK_THROWS_WITH(
        run_ranks(2, "thread",
                  [&](TestRank& rank) { parallel::share_layers(rank.world, rank.device, m); }),
        Catch::Contains(what));
  };
  plan::ModelShape heads = shape(1, 0), ffn = shape(2, 0), expert = shape(2, 4);
  heads.heads = 3, ffn.ffn = 47, expert.experts.ffn = 39;
  refuse(heads, "2 ranks cannot share a model of 3 attention heads");
  refuse(ffn, "47 elements in a feed-forward layer");
  refuse(expert, "39 elements in an expert");
}
