// Compares layouts of models with experts with a single rank. Some layout combines every two values
// of different factors that the rules allow together. Runs under the stream sanitizer.
#include <map>

#include <catch2/catch.hpp>

#include "covering.h"
#include "train_experts_testing.h"

namespace parity_experts_matrix_test {

using namespace mtrain;
using namespace train_testing;

namespace {

enum Factor {
  kEp,
  kDispatcher,
  kTensor,
  kCp,
  kPipeline,
  kStrategy,
  kCopies,
  kPacked,
  kRecompute,
  kAverage,
  kModel,
  kFactors
};
using Choice = Combination<kFactors>;

// Values of kTensor, kStrategy and kRecompute.
enum { full_model, divided, sequence, undivided_experts };
enum { megatron_ddp, fsdp2, fsdp2_at_once };
enum { nothing, modules, full };
constexpr std::array kDispatchers{"alltoall", "all_gather", "flex"};
constexpr std::array kTensors{"", ", tp 2", ", tp 2 sp", ", tp 2 sp with whole experts"};
constexpr std::array kSchedules{"", "1f1b", "interleaved_1f1b", "zero_bubble", "dualpipev"};
constexpr std::array kStrategies{"megatron_ddp", "fsdp2", "fsdp2 at once"};
constexpr std::array kRecomputes{"nothing", "moe", "layers"};
constexpr Choice kValues{3,
                         kDispatchers.size(),
                         kTensors.size(),
                         2,
                         kSchedules.size(),
                         kStrategies.size(),
                         2,
                         2,
                         kRecomputes.size(),
                         2,
                         2};

int ep_size(const Choice& l) { return 1 << l[kEp]; }
int cp(const Choice& l) { return 1 + l[kCp]; }
int tp_size(const Choice& l) { return l[kTensor] == full_model ? 1 : 2; }
int pp(const Choice& l) { return l[kPipeline] == 0 ? 1 : 2; }
// The ranks of a pipeline stage over which experts are spread are a multiple of ep.
int dp(const Choice& l) {
  const int sharing = cp(l) * (l[kTensor] == undivided_experts ? 2 : 1);
  return std::max(1, ep_size(l) / sharing) * (1 + l[kCopies]);
}
int ranks(const Choice& l) { return dp(l) * cp(l) * tp_size(l) * pp(l); }

std::string describe(const Choice& l) {
  return fmt::format("{}, ep {} by {}{}, cp {}, pp {} {}, dp {}, {}{}{}, recomputes {}, model {}",
                     ranks(l), ep_size(l), kDispatchers[size_t(l[kDispatcher])],
                     kTensors[size_t(l[kTensor])], cp(l), pp(l), kSchedules[size_t(l[kPipeline])],
                     dp(l), kStrategies[size_t(l[kStrategy])], l[kAverage] ? ", averages" : "",
                     l[kPacked] ? ", packed" : "", kRecomputes[size_t(l[kRecompute])], l[kModel]);
}

// Returns whether the layout is allowed and small enough for a test, and each of its choices has an
// effect.
bool worth_training(const Choice& l) {
  if (ranks(l) == 1 || ranks(l) > 16) return false;
  if (ep_size(l) == 1 && l[kDispatcher] != 0) return false;
  const std::string dispatcher = kDispatchers[size_t(l[kDispatcher])];
  if (dispatcher == "flex" && l[kTensor] == sequence) return false;
  const int with_a_sample = cp(l) * (l[kTensor] == undivided_experts ? 2 : 1);
  if (dispatcher == "all_gather" && l[kPacked] && cp(l) > 1 && with_a_sample % ep_size(l) != 0)
    return false;
  // dualpipev needs four of the eight micro-batches on each rank.
  if (kSchedules[size_t(l[kPipeline])] == std::string("dualpipev") && dp(l) > 2) return false;
  return !l[kAverage] || (l[kStrategy] == megatron_ddp && dp(l) * cp(l) > 1);
}

Changes model_of(const Choice& l) {
  Changes model = l[kModel] == 0 ? kPlain : kShared;
  if (l[kPacked]) model.push_back("packed_sequence.packed_sequence_size=24");
  return model;
}

Changes changes_of(const Choice& l) {
  Changes c{fmt::format("distributed.ep_size={}", ep_size(l)),
            fmt::format("distributed.tp_size={}", tp_size(l)),
            fmt::format("distributed.cp_size={}", cp(l)),
            fmt::format("distributed.strategy={}",
                        l[kStrategy] == megatron_ddp ? "megatron_ddp" : "fsdp2")};
  const auto add = [&](bool condition, const std::string& change) {
    if (condition) c.push_back(change);
  };
  add(ep_size(l) > 1,
      fmt::format("model.moe.token_dispatcher={}", kDispatchers[size_t(l[kDispatcher])]));
  add(l[kTensor] >= sequence, "distributed.sequence_parallel=true");
  add(l[kTensor] == undivided_experts, "distributed.expert_tp_size=1");
  add(l[kStrategy] == megatron_ddp, "ddp.bucket_size=3000");
  add(l[kStrategy] == fsdp2_at_once, "distributed.defer_fsdp_grad_sync=false");
  add(l[kAverage], "ddp.average_in_collective=true");
  add(l[kRecompute] == full, "recompute.granularity=full");
  add(l[kRecompute] == modules, "recompute.granularity=selective");
  add(l[kRecompute] == modules,
      l[kModel] == 0 ? "recompute.modules=[moe]" : "recompute.modules=[moe,shared_experts]");
  if (pp(l) == 1) return c;
  const std::string schedule = kSchedules[size_t(l[kPipeline])];
  const bool several = schedule == "interleaved_1f1b" || schedule == "dualpipev";
  return join({c, pipelined(schedule.c_str(), several ? 2 : 1)});
}

}  // namespace

TEST_CASE(
    "every two choices of a layout of experts meet in one that trains as a single rank does") {
  // Many ranks share few cores, so only the smaller layouts make the steps of the numerics
  // contract.
  const auto steps = [](const Choice& l) -> int64_t {
    return compared_steps(ranks(l) <= 8 ? 20 : 10);
  };
  std::map<std::pair<Changes, int64_t>, Trained> alone;
  for (const Choice& l : covering_choices(kValues, 2, {}, worth_training, ranks)) {
    INFO(describe(l));
    const Changes model = model_of(l);
    std::shared_ptr<const data::Dataset> data = std::make_shared<CountingData>();
    if (l[kPacked]) data = std::make_shared<PackedCountingData>();
    Trained& one = alone[{model, steps(l)}];
    if (one.losses.empty()) one = one_rank(model, steps(l), true, data);
    // Ranks divide each document of a pack; a router that is computed again is not recorded twice.
    const bool compare_choices = l[kRecompute] != full && !(l[kPacked] && cp(l) > 1);
    const auto results =
        all_ranks(ranks(l), join({model, changes_of(l)}), steps(l), compare_choices, data);
    expect_as_alone(one, results, compare_choices);
  }
}

}  // namespace parity_experts_matrix_test
