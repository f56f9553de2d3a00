// Which stages of small pipelines are recorded, and for which others they stand.
#include <catch2/catch.hpp>

#include "plan/executed_schedule.h"
#include "predict/alike_stages.h"
#include "test/support/predict_cases.h"

namespace predict_alike_stages_test {

using namespace mtrain;
using namespace mtrain::predict;

namespace {

// 16 stages on four ranks, of two layers each: rank 0 has the stages 0, 4, 8 and 12.
AlikeStages alike(const predict_cases::Changes& more, bool all = false) {
  const RunPlan plan = predict_cases::plan_of(
      {8,
       {"model.num_layers=32", "distributed.pp_size=4", "distributed.vpp_size=4",
        "distributed.pipeline.pp_schedule=interleaved_1f1b", "train.global_batch_size=32"}},
      more);
  return alike_stages(plan, plan::executed_schedule(plan), all);
}

const predict_cases::Changes kReplicated{"distributed.strategy=megatron_ddp",
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

}  // namespace predict_alike_stages_test
