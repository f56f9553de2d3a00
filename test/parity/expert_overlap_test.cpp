// A shared expert or chunks of experts that compute while tokens travel change no bit: losses,
// norms, gradients and evaluation are those of the same layout without overlap. Runs under the
// stream sanitizer.
#include <algorithm>
#include <map>
#include <string>

#include <catch2/catch.hpp>

#include "train_experts_testing.h"

namespace parity_expert_overlap_test {

using namespace mtrain;
using namespace train_testing;

namespace {

constexpr int64_t kFew = 4;

Changes chunks(int count) { return {fmt::format("comm_overlap.moe_dispatch_chunks={}", count)}; }
const Changes kSharedOverlap{"model.moe.shared_expert_overlap=true"},
    kBf16{"mixed_precision.name=bf16_mixed"},
    kModules{"recompute.granularity=selective", "recompute.modules=[moe,shared_experts,layernorm]"},
    kNoGate{"model.moe.shared_expert_gate=false"},
    kFloat8{"mixed_precision.name=bf16_mixed", "mixed_precision.fp8=hybrid",
            "debug.emulate_fp8=true",          "model.hidden_size=64",
            "model.moe.ffn_hidden_size=48",    "model.moe.shared_expert_ffn_hidden_size=32"},
    kDelayedScales{"mixed_precision.fp8_recipe=delayed", "mixed_precision.fp8_amax_history_len=4"};

// Compares each of the `ways` to overlap with none.
void expect_no_change(const Layout& layout, const std::vector<Changes>& ways) {
  const auto off = all_ranks(layout.ranks, layout.changes, kFew, false);
  for (const Changes& way : ways) {
    CAPTURE(layout.ranks, layout.changes, way);
    expect_same_bits(off, all_ranks(layout.ranks, with(layout.changes, way), kFew, false));
  }
}

const Changes kBoth = join({kSharedOverlap, chunks(2)});

// Returns the exchanges of rows, and the GEMMs of experts and of the shared expert, of a step with
// one micro-batch and one layer, in the order in which a rank enqueues them.
std::string launches(const Changes& more) {
  const std::map<std::string, std::string> shown{{"all_to_all", "x"},
                                                 {"matmul_fc1_fwd", "S1"},
                                                 {"matmul_fc2_fwd", "S2"},
                                                 {"experts_up_fwd", "up"},
                                                 {"experts_down_fwd", "down"},
                                                 {"matmul_fc2_dgrad", "dS2"},
                                                 {"matmul_fc2_wgrad", "wS2"},
                                                 {"matmul_fc1_dgrad", "dS1"},
                                                 {"matmul_fc1_wgrad", "wS1"},
                                                 {"experts_up_dgrad", "dup"},
                                                 {"experts_down_dgrad", "ddown"},
                                                 {"experts_up_wgrad", "wup"},
                                                 {"experts_down_wgrad", "wdown"}};
  std::string order;
  for (const Launched& l : launches_of(
           2, join({kShared,
                    ep(2),
                    kMegatron,
                    {"model.num_layers=1", "train.global_batch_size=2", "train.micro_batch_size=1"},
                    more}))) {
    const auto found = shown.find(l.name);
    if (found != shown.end()) order += found->second + " ";
  }
  return order;
}

}  // namespace

// Tokens travel with their weights, and gradients of rows return with those of their weights, each
// in one exchange.
TEST_CASE("shared experts and chunks are enqueued after exchanges that are under way") {
  CHECK(launches({}) ==
        "x up down x S1 S2 "
        "dS2 wS2 dS1 wS1 x ddown wdown dup wup x ");
  CHECK(launches(kSharedOverlap) ==
        "x S1 up down x S2 "
        "x dS2 wS2 ddown wdown dup wup x dS1 wS1 ");
  CHECK(launches(chunks(4)) ==
        "x x up down x x up down x x up down x up down x S1 S2 "
        "dS2 wS2 dS1 wS1 x x ddown dup x x ddown dup x x ddown dup x ddown dup x wdown wup ");
  CHECK(launches(kBoth) ==
        "x x S1 up down x up down x S2 "
        "x x dS2 wS2 ddown dup x ddown dup x wdown wup dS1 wS1 ");
}

TEST_CASE("a shared expert that computes while tokens travel changes no bit") {
  for (const Layout& l :
       std::vector<Layout>{{2, join({kShared, ep(2), kMegatron})},
                           {4, join({kShared, kNoGate, ep(4), kFsdp2, kBf16})},
                           {2, join({kShared, ep(2), kAtOnce, kFlex})},
                           {2, join({kShared, ep(2), kMegatron, kModules})},
                           {4, join({kShared, ep(2), kFsdp2, kFull})},
                           {4, join({kShared, ep(2), pipelined("zero_bubble", 1), kMegatron})},
                           {4, join({kShared, ep(2), tp(2), kMegatron})},
                           {4, join({kShared, ep(2), tp(2), kSequence, kFsdp2, kBf16})},
                           {2, join({kShared, kFloat8, ep(2), kFsdp2})},
                           {2, join({kShared, kFloat8, kDelayedScales, ep(2), kMegatron})}})
    expect_no_change(l, {kSharedOverlap});
}

TEST_CASE("experts in chunks change no bit") {
  for (const Layout& l :
       std::vector<Layout>{{2, join({kPlain, ep(2), kMegatron})},
                           {2, join({kPlain, ep(2), kFsdp2, kBf16})},
                           {4, join({kPlain, ep(2), kAtOnce})},
                           {2, join({kPlain, ep(2), kMegatron, {"model.activation=geglu"}})}})
    expect_no_change(l, {chunks(2), chunks(3), chunks(4)});
  // Experts that drop tokens, and experts whose rows are padded.
  for (const Changes& padded : {Changes{}, kPadded})
    expect_no_change({4, join({kBalanced, ep(4), kMegatron, padded})}, {chunks(2)});
}

TEST_CASE("experts in chunks change no bit where some of them, or a rank, have no rows") {
  // Of 24 tokens nearly all go to the first experts.
  const Changes empty{"model.moe.num_experts=64", "model.moe.router_topk=1",
                      "model.moe.router_pre_softmax=true", "model.moe.norm_topk_prob=false",
                      "debug.route=zipf"};
  expect_no_change({4, join({kPlain, empty, ep(4), kMegatron})}, {chunks(2), chunks(16)});
}

TEST_CASE("experts in chunks change no bit when they are computed again") {
  const Changes act{"recompute.granularity=selective", "recompute.modules=[moe_act]"};
  for (const Changes& again : {kFull, kModules, act, join({kFull, kKeepRouters})})
    expect_no_change({2, join({kShared, ep(2), kFsdp2, again})}, {kBoth});
}

TEST_CASE("experts in chunks change no bit in pipelines") {
  const Changes pairs{"comm_overlap.fine_grained_1f1b=true",
                      "comm_overlap.delay_wgrad_compute=true"};
  for (const Changes& schedule :
       {pipelined("1f1b", 1), pipelined("zero_bubble", 1),
        join({pipelined("interleaved_1f1b", 2), pairs}), pipelined("dualpipev", 2)})
    expect_no_change({4, join({kShared, ep(2), schedule, kMegatron})}, {kBoth});
}

// A forward in chunks then has a backward without chunks, or the other way round.
TEST_CASE("passes that run as a pair have no chunks, and those before and after them do") {
  const auto products = [](const Changes& more) {
    const auto all = launches_of(4, join({kPlain,
                                          ep(2),
                                          kMegatron,
                                          pipelined("interleaved_1f1b", 2),
                                          {"comm_overlap.fine_grained_1f1b=true"},
                                          more}));
    return std::pair{std::ranges::count(all, "experts_up_fwd", &Launched::name),
                     std::ranges::count(all, "experts_up_dgrad", &Launched::name)};
  };
  const auto [forward, backward] = products({});
  const auto [forward_chunks, backward_chunks] = products(chunks(4));
  CHECK(forward_chunks > forward);
  CHECK(forward_chunks < 4 * forward);
  CHECK(backward_chunks > backward);
  CHECK(backward_chunks < 4 * backward);
}

TEST_CASE("experts in chunks change no bit beside tensor and context parallelism") {
  for (const Changes& divided : {tp(2), join({tp(2), kSequence})})
    expect_no_change({4, join({kShared, ep(2), divided, kMegatron})}, {kBoth});
  for (const Changes& layout : {join({kBalanced, ep(2), tp(2), kSequence, kPadded, kFsdp2}),
                                join({kPlain, ep(2), tp(2), kWhole, kMegatron, kBf16}),
                                join({kPlain, ep(2), cp2("p2p"), kFsdp2})})
    expect_no_change({4, layout}, {chunks(2)});
}

}  // namespace parity_expert_overlap_test
