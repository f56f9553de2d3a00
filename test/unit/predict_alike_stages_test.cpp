// Tests which stages of small pipelines are recorded, and that the others are like them.
#include <set>
#include <span>

#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include "plan/executed_schedule.h"
#include "predict/alike_stages.h"
#include "predict/group_links.h"
#include "predict/recorded_step.h"
#include "predict/sheet_costs.h"
#include "predict/shorter_step.h"
#include "predict/stage_sequences.h"
#include "predict/step_model.h"
#include "test/support/predict_cases.h"

namespace predict_alike_stages_test {

using namespace mtrain;
using namespace mtrain::predict;
using predict_cases::Changes;
using predict_cases::cluster;

namespace {

// 16 stages on four ranks, of two layers each: rank 0 has the stages 0, 4, 8 and 12.
RunPlan of_many_stages(const Changes& more) {
  return predict_cases::plan_of(
      {8,
       {"model.num_layers=32", "distributed.pp_size=4", "distributed.vpp_size=4",
        "distributed.pipeline.pp_schedule=interleaved_1f1b", "train.global_batch_size=32",
        "train.micro_batch_size=1"}},
      more);
}

AlikeStages alike(const Changes& more, bool all = false) {
  const RunPlan plan = of_many_stages(more);
  return alike_stages(plan, plan::executed_schedule(plan), all);
}

const Changes kReplicated{"distributed.strategy=megatron_ddp",
                          "ddp.use_distributed_optimizer=false"};

}  // namespace

TEST_CASE("one stage stands for all in the middle") {
  const AlikeStages a = alike(kReplicated);
  std::vector<int64_t> expected(16, 4);
  expected[0] = 0;
  expected[15] = 15;
  CHECK(a.of_stage == expected);
  // The first rank and the last one differ from the two between them.
  CHECK(a.of_rank == std::vector<size_t>{0, 1, 1, 2});
  REQUIRE(a.ranks.size() == 3);
  CHECK(a.ranks[0].stages == std::set<int64_t>{0, 4});
  CHECK(a.ranks[0].skipped == std::set<int64_t>{8, 12});
  // All stages of rank 1 are known, but its messages are not: it keeps a stage.
  CHECK(a.ranks[1].pp_rank == 1);
  CHECK(a.ranks[1].stages.empty());
  CHECK(a.ranks[1].skipped == std::set<int64_t>{5, 9, 13});
  CHECK(a.ranks[2].pp_rank == 3);
  CHECK(a.ranks[2].stages == std::set<int64_t>{15});
  CHECK(a.ranks[2].skipped == std::set<int64_t>{3, 7, 11});
}

TEST_CASE("a stage that gathers the next one is recorded with it") {
  const AlikeStages a = alike({"distributed.strategy=megatron_ddp"});
  for (const RankToRecord& rank : a.ranks)
    for (const int64_t stage : rank.stages) CHECK_FALSE(rank.skipped.contains(stage - 4));
}

TEST_CASE("every stage can be recorded for itself") {
  const AlikeStages a = alike(kReplicated, true);
  CHECK(a.of_rank == std::vector<size_t>{0, 1, 2, 3});
  for (int64_t stage = 0; stage < 16; ++stage) CHECK(a.of_stage[size_t(stage)] == stage);
  for (const RankToRecord& rank : a.ranks) {
    CHECK(rank.stages.size() == 4);
    CHECK(rank.skipped.empty());
  }
}

// Pipelines of 16 stages, which differ in their strategy and in what the stages have.
const Changes kManyStages[] = {
    {"distributed.strategy=megatron_ddp"},
    {"distributed.strategy=megatron_ddp", "ddp.overlap_param_gather=false"},
    {"distributed.strategy=megatron_ddp", "ddp.use_distributed_optimizer=false"},
    {"distributed.strategy=fsdp2"},
    {"distributed.strategy=fsdp2", "distributed.defer_fsdp_grad_sync=false"},
    {"distributed.strategy=megatron_ddp", "model.num_layers=30"},
    {"distributed.strategy=megatron_ddp", "recompute=full"},
    {"distributed.strategy=megatron_ddp", "mixed_precision=bf16_mixed"},
    {"distributed.strategy=fsdp2", "model.share_embeddings_and_output_weights=true"},
    {"distributed.strategy=fsdp2", "model.num_layers=80", "distributed.pp_size=2",
     "distributed.vpp_size=8"}};

// The same pipelines with other schedules, and with experts, whose first step is computed.
Changes with_eight_experts(Changes more) {
  more.insert(more.end(), {"model.moe.num_experts=8", "model.moe.router_topk=2",
                           "model.moe.ffn_hidden_size=32", "distributed.ep_size=2"});
  return more;
}
const Changes kOtherStages[] = {
    {"distributed.pipeline.pp_schedule=zero_bubble", "distributed.strategy=megatron_ddp",
     "ddp.use_distributed_optimizer=false"},
    {"distributed.pipeline.pp_schedule=looped_bfs", "distributed.strategy=fsdp2"},
    {"distributed.pipeline.pp_schedule=dfs", "distributed.strategy=megatron_ddp"},
    with_eight_experts({"distributed.strategy=megatron_ddp"}),
    with_eight_experts({"distributed.strategy=fsdp2"}),
    with_eight_experts({"distributed.pipeline.pp_schedule=zero_bubble",
                        "distributed.strategy=megatron_ddp",
                        "ddp.use_distributed_optimizer=false"}),
    with_eight_experts({"distributed.strategy=megatron_ddp", "model.moe.first_dense_layers=8",
                        "model.moe.shared_expert_ffn_hidden_size=32"})};

// Pipelines whose ranks record all of their stages. Either a rank has two stages that follow each
// other, or the last stages also send what multi-token prediction needs.
const Changes kRecordedTogether[] = {
    {"distributed.strategy=megatron_ddp", "distributed.pipeline.pp_schedule=v_schedule",
     "distributed.vpp_size=2"},
    with_eight_experts({"distributed.strategy=megatron_ddp", "distributed.vpp_size=2",
                        "distributed.pipeline.pp_schedule=dualpipev"}),
    {"distributed.strategy=megatron_ddp", "model.mtp_num_layers=2"}};

void expect_same(const LaunchSequence& a, const LaunchSequence& b) {
  CHECK(a.streams() == b.streams());
  REQUIRE(a.items().size() == b.items().size());
  for (size_t i = 0; i < a.items().size(); ++i) CHECK(a.items()[i] == b.items()[i]);
}

void expect_same(const MicroBatchSequences& a, const MicroBatchSequences& b) {
  expect_same(a.first, b.first);
  expect_same(a.middle, b.middle);
  expect_same(a.last, b.last);
}

// Compares recordings of all stages of a rank with recordings without two of them.
void expect_same_without_others(std::span<const Changes> plans) {
  const plan::Cluster c = cluster();
  for (const Changes& changes : plans) {
    INFO(fmt::format("{}", fmt::join(changes, " ")));
    const RunPlan plan = with_three_micro_batches(of_many_stages(changes)).value();
    REQUIRE(can_skip_stages(plan));
    const schedule::Schedule lists = plan::executed_schedule(plan);
    GroupLinks links(plan, c);
    LaunchList list;
    for (int64_t pp_rank = 0; pp_rank < plan.layout.pp; ++pp_rank) {
      const auto rank = int(pp_rank * plan.mesh.stride(mesh::Axis::pp));
      const auto recorded = [&](const std::set<int64_t>& skipped) {
        return sort_by_action(record_step(plan, rank, skipped).records,
                              lists.ranks[size_t(pp_rank)], 3, list, links);
      };
      // The rank's stages but the second and the third.
      const PipelineRankSequences all = recorded({}),
                                  some = recorded(
                                      {pp_rank + plan.layout.pp, pp_rank + 2 * plan.layout.pp});
      expect_same(all.before, some.before);
      expect_same(all.after, some.after);
      CHECK(all.uploads == some.uploads);
      CHECK(all.send.has_value() == some.send.has_value());
      CHECK(some.stages.size() == all.stages.size() - 2);
      const StageSequences &a = all.stages.at(pp_rank), &b = some.stages.at(pp_rank);
      for (size_t kind = 0; kind < a.actions.size(); ++kind)
        expect_same(a.actions[kind], b.actions[kind]);
      expect_same(a.delayed, b.delayed);
      expect_same(a.last_gradients, b.last_gradients);
      expect_same(a.gather, b.gather);
    }
  }
}

TEST_CASE("stages that are recorded without others of their rank enqueue the same") {
  expect_same_without_others(kManyStages);
}

TEST_CASE("stages of other schedules and with experts do so, too") {
  expect_same_without_others(kOtherStages);
}

TEST_CASE("no stage is left out on which other stages of its rank depend") {
  const Changes kDepend[] = {
      // Stages gather ahead for each other, or an update gathers for more than the first of them.
      {"distributed.strategy=fsdp2", "distributed.reshard_after_forward=true"},
      {"distributed.strategy=fsdp2", "distributed.reshard_after_forward=false"},
      {"distributed.strategy=fsdp2", "distributed.fsdp2_forward_prefetch_depth=3"},
      {"distributed.strategy=fsdp2", "model.num_layers=16"},
      // Weight gradients that wait keep more gradients of sharded units at once.
      {"distributed.strategy=fsdp2", "distributed.pipeline.pp_schedule=zero_bubble"}};
  for (const Changes& changes : kDepend) {
    INFO(fmt::format("{}", fmt::join(changes, " ")));
    CHECK_FALSE(can_skip_stages(of_many_stages(changes)));
  }
  for (const Changes& changes : kRecordedTogether) {
    INFO(fmt::format("{}", fmt::join(changes, " ")));
    CHECK_FALSE(can_skip_stages(of_many_stages(changes)));
  }
}

TEST_CASE("ranks that are alike with fewer layers may differ with more") {
  // Three of four stages lose eight layers each, and the second record has all stages alike.
  const RunPlan plan = predict_cases::plan_of(
      {4,
       {"model.num_layers=40", "distributed.pp_size=4",
        "distributed.pipeline.layout=Et*12|t*12|t*4|t*12L", "train.micro_batch_size=1"}});
  const plan::Cluster c = cluster();
  const SheetCosts costs(c, {});
  CHECK(StepModel(plan, c).price(costs).step_s ==
        Approx(StepModel(plan, c, RecordedParts::all).price(costs).step_s).epsilon(0.02));
}

TEST_CASE("of stages that are alike one is recorded") {
  const plan::Cluster c = cluster();
  const auto recorded = [&](const Changes& changes) {
    return StepModel(of_many_stages(changes), c).recorded_stages();
  };
  // The first stage, the last one, and those between them. If parameters are sharded, the update
  // has gathered some of a rank's first stage.
  CHECK(recorded({"distributed.strategy=fsdp2"}) == 4);
  CHECK(recorded({"distributed.strategy=megatron_ddp", "ddp.use_distributed_optimizer=false"}) ==
        3);
  // A stage also gathers the parameters of the rank's next one.
  CHECK(recorded({"distributed.strategy=megatron_ddp"}) < 16);
}

void expect_same_times(std::span<const Changes> plans) {
  const plan::Cluster c = cluster();
  for (const Changes& changes : plans) {
    INFO(fmt::format("{}", fmt::join(changes, " ")));
    const RunPlan full = of_many_stages(changes),
                  plan = with_three_micro_batches(full).value_or(full);
    const Prediction few = StepModel(plan, c).price(SheetCosts(c, {})),
                     all = StepModel(plan, c, RecordedParts::all).price(SheetCosts(c, {}));
    CHECK(few.step_s == Approx(all.step_s).epsilon(1e-9));
    CHECK(few.times.gaps == Approx(all.times.gaps).epsilon(1e-9));
    for (const char* axis : {"dp", "pp"}) {
      CHECK(few.exposed(axis) == Approx(all.exposed(axis)).epsilon(1e-9));
      CHECK(few.busy(axis) == Approx(all.busy(axis)).epsilon(1e-9));
    }
  }
}

TEST_CASE("a stage that stands for others takes their time") {
  expect_same_times(kManyStages);
  expect_same_times(kOtherStages);
  expect_same_times(kRecordedTogether);
}

}  // namespace predict_alike_stages_test
