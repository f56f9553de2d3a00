// Tests `mtrain parity`: it finds an error that is planted in the communication of each
// parallelism, and none where there is none.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "interchange/model_source.h"
#include "plan/parity_recipe.h"
#include "run/parity.h"

namespace parity_parity_check_test {

using namespace mtrain;
using device::StreamKind;

namespace {

constexpr const char* kDense =
    "model: {num_layers: 12, hidden_size: 768, num_attention_heads: 12}\ndataset: {train: x}\n";
constexpr const char* kExperts =
    "model: {num_layers: 12, hidden_size: 768, num_attention_heads: 12, moe: {num_experts: 8, "
    "router_topk: 2}}\ndataset: {train: x}\n";

plan::RecipeSource source_of(const char* text, std::vector<std::string> settings, int64_t world) {
  return {.models = &interchange::model_source(),
          .path = "r.yaml",
          .settings = std::move(settings),
          .world = world,
          .text = text};
}

// Changes what rank 1 has received in its first communication of the kind, before it is used.
std::function<void(int, Device&)> plant(StreamKind kind) {
  return [kind](int rank, Device& device) {
    if (rank != 1) return;
    auto seen = std::make_shared<int>(0);
    device.set_launch_check([=](Stream& stream, const device::LaunchInfo& info) {
      if (stream.id().kind != kind || *seen > 0) return;
      for (const auto& access : info.writes) {
        if (!access.data || access.bytes < 64) continue;
        ++*seen;
        while (stream.completed() < stream.enqueued()) std::this_thread::yield();
        float* values = static_cast<float*>(const_cast<void*>(access.data));
        for (int64_t i = 0; i < access.bytes / 4; ++i) values[i] += 0.5f;
        return;
      }
    });
  };
}

}  // namespace

TEST_CASE("an error in the communication of each parallelism is found, and none without one") {
  struct Case {
    const char* name;
    const char* recipe;
    std::vector<std::string> settings;
    StreamKind kind;
  };
  const std::vector<Case> cases{
      {"tp",
       kDense,
       {"distributed.strategy=megatron_ddp", "distributed.tp_size=2"},
       StreamKind::tp},
      {"cp",
       kDense,
       {"distributed.strategy=megatron_ddp", "distributed.cp_size=2"},
       StreamKind::cp},
      {"pp",
       kDense,
       {"distributed.strategy=megatron_ddp", "distributed.pp_size=2"},
       StreamKind::pp_recv},
      {"ep",
       kExperts,
       {"distributed.strategy=megatron_ddp", "distributed.ep_size=2"},
       StreamKind::ep},
      {"dp", kDense, {"distributed.strategy=megatron_ddp"}, StreamKind::dp_grad}};
  for (const Case& c : cases) {
    INFO(c.name);
    const plan::RecipeSource source = source_of(c.recipe, c.settings, 2);
    const run::ParityReport clean = run::check_parity(source, {.steps = 3});
    REQUIRE_FALSE(clean.rows.empty());
    for (const run::ParityRow& row : clean.rows) {
      INFO(row.what << ": " << row.loss << " " << row.gradient);
      CHECK_FALSE(row.difference);
      // The layout is compared with a single rank alone.
      const bool is_layout = &row == &clean.rows.front();
      CHECK(row.same_bits.has_value() == (!is_layout && row.skipped.empty()));
    }
    const run::ParityReport planted =
        run::check_parity(source, {.steps = 3, .on_rank = plant(c.kind)});
    CHECK_FALSE(planted.equal());
    for (const run::ParityRow& row : planted.rows) {
      if (!row.skipped.empty()) continue;
      INFO(row.what);
      REQUIRE(row.difference);
      CHECK(row.difference->step == 1);
    }
  }
}

TEST_CASE("a shrunk recipe keeps the layout and its overlap") {
  const plan::RecipeSource source =
      source_of(kExperts,
                {"distributed.strategy=megatron_ddp", "distributed.tp_size=2",
                 "distributed.pp_size=2", "distributed.sequence_parallel=true",
                 "distributed.ep_size=2", "comm_overlap.tp_comm_overlap=true",
                 "train.global_batch_size=64", "train.micro_batch_size=1"},
                8);
  const plan::Change shrunk = plan::shrink_for_parity(source, 5);
  const auto trial = plan::plan_trial(source, shrunk, plan::kParityVocab);
  REQUIRE(trial);
  CHECK(trial->plan.layout.tp == 2);
  CHECK(trial->plan.layout.pp == 2);
  CHECK(trial->plan.layout.ep == 2);
  CHECK(trial->plan.model.hidden <= 256);
  CHECK(trial->plan.model.layer_count() <= 4);
  const auto offs = plan::each_overlap_off(source, shrunk, trial->plan);
  CHECK_FALSE(offs.empty());
  const auto alone =
      plan::plan_trial(source, plan::on_single_rank(source, shrunk), plan::kParityVocab);
  REQUIRE(alone);
  CHECK(alone->plan.layout.world == 1);
  CHECK(alone->plan.model == trial->plan.model);
}

TEST_CASE("too many ranks are refused") {
  CHECK_THROWS_AS(run::check_parity(source_of(kDense, {}, 1024), {}), UserError);
}

}  // namespace parity_parity_check_test
