// Tests which 8-bit copies of weights are kept: those that a step uses more than once.
#include "interchange/model_source.h"
#include "plan/run_plan.h"
#include "recipe_cases.h"

namespace plan_fp8_weight_cache_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;

namespace {

// Forward, backward.
using Kept = std::pair<bool, bool>;

Kept kept(int64_t world, Overrides overrides) {
  for (const char* o : {"mixed_precision={name: bf16_mixed, fp8: hybrid}", "hardware.gpu=h100",
                        "train.device=cuda"})
    overrides.insert(overrides.begin(), o);
  Diagnostics diagnostics;
  const Recipe r = load_recipe_text(interchange::model_source(), kBase, "base.yaml", overrides,
                                    diagnostics, world);
  std::string all;
  for (const auto& p : diagnostics.sorted())
    if (p.severity == recipe::Severity::error) all += p.str() + "\n";
  CAPTURE(overrides);
  CHECK(all == "");
  const Fp8WeightCache copies = make_plan(r, world, 0).fp8_weights;
  return {copies.forward, copies.backward};
}

}  // namespace

TEST_CASE("8-bit weights are kept where a step uses them more than once, and they stay") {
  const char* once = "train.micro_batch_size=32";
  const char* full = "recompute.granularity=full";
  CHECK(kept(1, {}) == Kept{true, true});
  CHECK(kept(1, {once}) == Kept{false, false});
  CHECK(kept(1, {once, full}) == Kept{true, false});
  CHECK(kept(1, {once, "recompute.granularity=selective"}) == Kept{false, false});
  CHECK(kept(1, {once, "recompute.granularity=selective", "recompute.modules=[mlp]"}) ==
        Kept{true, false});
  CHECK(kept(1, {"mixed_precision.fp8=none"}) == Kept{false, false});
  CHECK(kept(2, {"distributed.strategy=ddp"}) == Kept{true, true});
  CHECK(kept(2, {"distributed.strategy=megatron_ddp"}) == Kept{true, true});
  CHECK(kept(2, {"distributed.strategy=megatron_ddp", "distributed.pp_size=2",
                 "distributed.pipeline={}"}) == Kept{true, true});
}

TEST_CASE("8-bit weights that are gathered for their use are not kept") {
  const char* full = "recompute.granularity=full";
  CHECK(kept(2, {"distributed.strategy=fsdp2", full}) == Kept{false, false});
  CHECK(kept(1, {"distributed.strategy=fsdp2", full}) == Kept{true, true});  // nothing is sharded
  CHECK(kept(2, {"distributed.strategy=fsdp2", "distributed.cp_size=2"}) == Kept{false, false});
  CHECK(kept(2, {"distributed.strategy=fsdp2", "distributed.tp_size=2"}) == Kept{true, true});
  const char* zero = "distributed.strategy=megatron_fsdp";
  CHECK(kept(2, {zero, "distributed.zero_dp_strategy=3"}) == Kept{false, false});
  CHECK(kept(2, {zero, "distributed.zero_dp_strategy=2"}) == Kept{true, true});
}

TEST_CASE("8-bit weights that are multiplied in chunks of rows are kept for them") {
  const auto chunks = [](const char* products) {
    return kept(2, {"train.micro_batch_size=32", "distributed.strategy=megatron_ddp",
                    "distributed.tp_size=2", "distributed.sequence_parallel=true",
                    "comm_overlap.tp_comm_overlap=true",
                    std::string("comm_overlap.tp_comm_overlap_cfg=") + products});
  };
  const char* none =
      "{qkv_fprop: none, qkv_dgrad: none, proj_fprop: none, proj_dgrad: none, fc1_fprop: none, "
      "fc1_dgrad: none, fc2_fprop: none, fc2_dgrad: none}";
  CHECK(chunks(none) == Kept{false, false});
  std::string forward = none, backward = none;
  forward.replace(forward.find("fc2_fprop: none"), 15, "fc2_fprop: {method: pipeline}");
  backward.replace(backward.find("fc2_dgrad: none"), 15, "fc2_dgrad: {method: ring_exchange}");
  CHECK(chunks(forward.c_str()) == Kept{true, false});
  CHECK(chunks(backward.c_str()) == Kept{false, true});
}

}  // namespace plan_fp8_weight_cache_test
