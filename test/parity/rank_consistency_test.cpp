// Tests that ranks that would wait for each other for ever are refused before the first step.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "comm/host_collectives.h"
#include "comm/thread/thread_transport.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "plan/run_plan.h"
#include "run/rank_consistency.h"

namespace parity_rank_consistency_test {

using namespace mtrain;

namespace {

// Returns the error of each of two ranks on hosts with these GPUs; "" if there is none.
std::vector<std::string> refusals(const std::vector<std::string>& gpus,
                                  const std::vector<std::string>& more) {
  std::vector<std::string> overrides{
      "train.device=cuda",          "comm.backend=nccl",
      "model.moe.num_experts=4",    "distributed.ep_size=2",
      "mixed_precision=bf16_mixed", "comm_overlap.overlap_moe_expert_parallel_comm=true"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  std::vector<std::string> said(gpus.size());
  comm::run_thread_ranks(int(gpus.size()), [&](comm::World& world) {
    const auto rank = size_t(world.rank());
    recipe::Diagnostics diagnostics;
    const recipe::Recipe r = plan::load_recipe_text(
        interchange::model_source(),
        "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 2, vocab_size: 512}\n"
        "dataset: {train: x, seq_length: 64}\n"
        "train: {global_batch_size: 8, micro_batch_size: 1}\n",
        "base.yaml", overrides, diagnostics, world.size(), {.gpus = 1, .gpu_name = gpus[rank]});
    diagnostics.throw_if_errors();
    const auto device = Device::cpu(1, {});
    const comm::HostCollectives control(world, *device);
    try {
      run::require_same_exchange_order(control, plan::make_plan(r, world.size(), 512));
    } catch (const UserError& e) {
      said[rank] = e.message() + " | " + e.hint();
    }
  });
  return said;
}

}  // namespace

TEST_CASE("hosts with different GPUs are refused where costs order the exchanges") {
  using Catch::Matchers::Contains;
  const std::string a100 = "NVIDIA A100-SXM4-80GB", h100 = "NVIDIA H100 80GB HBM3";
  const std::vector<std::string> nothing{"", ""};
  for (const std::string& text : refusals({h100, a100}, {})) {
    CHECK_THAT(text, Contains("rank 1 has a different cost estimate for the parts of a pass"));
    CHECK_THAT(text, Contains("set hardware.gpu"));
  }
  CHECK(refusals({a100, a100}, {}) == nothing);
  CHECK(refusals({h100, a100}, {"hardware.gpu=a100"}) == nothing);
  CHECK(refusals({h100, a100}, {"comm_overlap.overlap_moe_expert_parallel_comm=false"}) == nothing);
}

}  // namespace parity_rank_consistency_test
