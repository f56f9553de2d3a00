// Tests that forwards and backwards which run together, so that exchanges of experts' rows travel
// while the other pass computes, change no bit. Runs under the stream sanitizer.
#include <algorithm>

#include <catch2/catch.hpp>

#include "covering.h"
#include "train_experts_testing.h"

using namespace mtrain;
using namespace train_testing;

namespace {

constexpr int64_t kFewSteps = 3;

const Changes kOn{"comm_overlap.overlap_moe_expert_parallel_comm=true"},
    kDelay{"comm_overlap.delay_wgrad_compute=true"};

void expect_same_bits(const std::vector<Trained>& a, const std::vector<Trained>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t rank = 0; rank < a.size(); ++rank) {
    CAPTURE(rank);
    CHECK((a[rank].losses == b[rank].losses));
    CHECK((a[rank].norms == b[rank].norms));
    CHECK((a[rank].balance == b[rank].balance));
    CHECK(a[rank].evaluation == b[rank].evaluation);
    CHECK((a[rank].gradients == b[rank].gradients));
  }
}

// What a rank enqueued in a step: the pass or "weights of" it with the segment, and the kernel or
// the collective.
std::vector<std::string> launches(const Changes& changes) {
  const Recipe r = tiny(changes, 2);
  std::vector<std::string> all;
  run_ranks(2, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    if (rank.rank() == 0)
      rank.device.set_launch_check([&](Stream&, const device::LaunchInfo& info) {
        all.push_back(rank.device.scope() + " " + info.name);
      });
    t.step();
    rank.device.set_launch_check({});
  });
  return all;
}

// Returns the position of a launch; fails unless there is one.
size_t at(const std::vector<std::string>& launches, const std::string& launch) {
  CAPTURE(launch);
  REQUIRE(std::ranges::count(launches, launch) > 0);
  return size_t(std::ranges::find(launches, launch) - launches.begin());
}

enum Factor {
  kPipeline,
  kStrategy,
  kDispatcher,
  kTensor,
  kCp,
  kModel,
  kNumbers,
  kDelayed,
  kFactors
};
using Choice = Combination<kFactors>;

// Values of kTensor, kModel and kNumbers.
enum { whole_model, divided, sequence, whole_experts };
enum { plain, shared, balanced };
enum { fp32, bf16, fp8 };
const std::vector<Changes> kPipelines{
    {},
    pipelined("interleaved_1f1b", 2),
    pipelined("dfs", 2),
    pipelined("dualpipev", 2),
    {"distributed.pp_size=4", "distributed.vpp_size=2",
     "distributed.pipeline.pp_schedule=interleaved_1f1b", "model.num_layers=8"}};
const std::vector<Changes> kStrategies{kMegatron, kFsdp2, kAtOnce};
// Rows up to a capacity also make ranks without rows: of 8 experts some get none of 24 tokens.
const std::vector<Changes> kDispatchers{
    {}, kFlex, join({{"model.moe.expert_capacity_factor=1.25"}, kPadded})};
const std::vector<Changes> kTensors{{}, tp(2), join({tp(2), kSequence}), join({tp(2), kWhole})};
const std::vector<Changes> kModels{kPlain, kShared, kBalanced};
const std::vector<Changes> kTypes{
    {},
    {"mixed_precision.name=bf16_mixed"},
    {"mixed_precision.name=bf16_mixed", "mixed_precision.fp8=hybrid", "debug.emulate_fp8=true",
     "model.hidden_size=64", "model.ffn_hidden_size=96", "model.moe.ffn_hidden_size=48"}};
constexpr Choice kValues{5, 3, 3, 4, 2, 3, 3, 2};

int pp(const Choice& c) { return c[kPipeline] == 0 ? 1 : c[kPipeline] == 4 ? 4 : 2; }
int tp_size(const Choice& c) { return c[kTensor] == whole_model ? 1 : 2; }
int ranks(const Choice& c) {
  const bool spread = c[kCp] == 1 || c[kTensor] == whole_experts;  // over ranks of one sample
  return pp(c) * tp_size(c) * (1 + c[kCp]) * (spread ? 1 : 2);
}

bool worth_training(const Choice& c) {
  if (ranks(c) > 8) return false;
  if (c[kDispatcher] == 1 && c[kTensor] == sequence) return false;  // flex
  return c[kNumbers] != fp8 || c[kTensor] == whole_model;
}

Changes changes_of(const Choice& c) {
  return join({kModels[size_t(c[kModel])], ep(2), kPipelines[size_t(c[kPipeline])],
               kStrategies[size_t(c[kStrategy])], kDispatchers[size_t(c[kDispatcher])],
               kTensors[size_t(c[kTensor])], c[kCp] ? cp2("p2p") : Changes{},
               kTypes[size_t(c[kNumbers])],
               c[kNumbers] == fp8 && c[kModel] == shared
                   ? Changes{"model.moe.shared_expert_ffn_hidden_size=64"}
                   : Changes{}});
}

}  // namespace

TEST_CASE("exchanges are enqueued before the weight gradients that hide them") {
  const auto all = launches(join({kPlain, ep(2), kMegatron, kOn, kDelay}));
  // The forward of micro-batch 1 runs together with the backward of micro-batch 0. Its layer 0 is
  // dense; the backward begins with layer 3.
  CHECK(at(all, "0F1 > layers.1.dispatch all_to_all") <
        at(all, "weights of 0B0 experts_down_wgrad"));
  CHECK(at(all, "0B0 > layers.3.mlp experts_up_dgrad") <
        at(all, "0F1 > layers.1.dispatch all_to_all"));
  CHECK(at(all, "0B0 > layers.3.combine all_to_all") <
        at(all, "0F1 > layers.1.attention norm_fwd"));
  CHECK(at(all, "0B0 > layers.3.dispatch all_to_all") <
        at(all, "0F1 > layers.1.mlp experts_up_fwd"));
  CHECK(at(all, "0F1 > layers.1.combine all_to_all") <
        at(all, "0B0 > layers.3.attention matmul_proj_dgrad"));
  CHECK(at(all, "0B0 > layers.2.combine all_to_all") < at(all, "weights of 0B0 matmul_qkv_wgrad"));
  // Without the setting no pass begins before another one has ended.
  const auto off = launches(join({kPlain, ep(2), kMegatron}));
  CHECK(std::ranges::none_of(off, [](const auto& l) { return l.starts_with("weights of"); }));
}

TEST_CASE("passes that hide each other's exchanges have the bits of passes one after the other") {
  int pairs = 0;
  for (const Choice& c : covering_choices(kValues, 2, {}, worth_training, ranks)) {
    const Changes off = changes_of(c);
    CAPTURE(off, c[kDelayed]);
    const auto plain = all_ranks(ranks(c), off, kFewSteps, false);
    expect_same_bits(plain, all_ranks(ranks(c), join({off, kOn, c[kDelayed] ? kDelay : Changes{}}),
                                      kFewSteps, false));
    ++pairs;
  }
  CHECK(pairs >= 20);
}

TEST_CASE("chunks of experts in the passes that run alone change no bit") {
  for (const Changes& model : {kPlain, kShared})
    for (const Layout& l :
         std::vector<Layout>{{2, join({ep(2), kMegatron})},
                             {4, join({ep(2), kFsdp2, pipelined("interleaved_1f1b", 2)})}}) {
      CAPTURE(model, l.changes);
      const Changes off = with(model, l.changes);
      expect_same_bits(all_ranks(l.ranks, off, kFewSteps, false),
                       all_ranks(l.ranks, join({off, kOn, {"comm_overlap.moe_dispatch_chunks=4"}}),
                                 kFewSteps, false));
    }
}

TEST_CASE("all settings of pairs in a pipeline give the same bits") {
  const Changes off = join({kShared,
                            ep(2),
                            pipelined("interleaved_1f1b", 2),
                            kMegatron,
                            {"model.num_layers=8", "model.moe.first_dense_layers=1"}});
  const auto plain = all_ranks(4, off, kFewSteps, false);
  for (int set = 0; set < 16; ++set) {
    Changes on = with(off, kOn);
    if (set & 1) on.push_back("comm_overlap.delay_wgrad_compute=true");
    if (set & 2) on.push_back("comm_overlap.overlap_p2p_backward_on_comm_stream=true");
    if (set & 4) on.push_back("comm_overlap.overlap_p2p_wgrad_delayed_layer_number=2");
    if (set & 8) on.push_back("comm_overlap.overlap_p2p_with_transformer_layer_wgrad=true");
    CAPTURE(on);
    expect_same_bits(plain, all_ranks(4, on, kFewSteps, false));
  }
}
