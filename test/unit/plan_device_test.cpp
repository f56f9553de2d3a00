// Tests the device for which a plan without ranks is made, and its report of the memory.
#include "interchange/model_source.h"
#include "plan/cheap_recompute.h"
#include "plan/device_text.h"
#include "plan/run_plan.h"
#include "recipe_cases.h"

namespace plan_device_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;
using Catch::Matchers::Contains;

namespace {

constexpr Machine kStarted{.cores = 4}, kPlanned{.dry_run = true, .cores = 4};

Recipe loaded(const Overrides& set, const Machine& machine, int64_t world = 1) {
  Diagnostics diagnostics;
  Recipe r = load_recipe_text(interchange::model_source(), kBase, "base.yaml", set, diagnostics,
                              world, machine);
  INFO(listed(diagnostics));
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}

bool on_gpu(const Recipe& r) { return r.train.device == DeviceChoice::cuda; }

}  // namespace

TEST_CASE("a dry run is for the GPU that the recipe names, and started ranks are not") {
  const Overrides h200{"hardware.gpu=h200"};
  CHECK(on_gpu(loaded(h200, kPlanned)));
  CHECK_FALSE(on_gpu(loaded(h200, kStarted)));
  CHECK_FALSE(on_gpu(loaded({"hardware.gpu=h200", "train.device=cpu"}, kPlanned)));
  CHECK_FALSE(on_gpu(loaded({"hardware.gpu=h200", "comm.backend=gloo"}, kPlanned)));
  // The GPU of this machine is not the one that the recipe names.
  Machine other = kPlanned;
  other.gpus = 1, other.gpu_name = "NVIDIA A100-SXM4-80GB";
  CHECK(loaded(h200, other).hardware.gpu == Gpu::h200);
}

TEST_CASE("a dry run of more ranks than this host has cores is for GPUs") {
  CHECK_FALSE(on_gpu(loaded({}, kPlanned, 4)));
  CHECK(on_gpu(loaded({}, kPlanned, 8)));
  CHECK_FALSE(on_gpu(loaded({}, kStarted, 8)));
  CHECK_FALSE(on_gpu(loaded({"train.device=cpu"}, kPlanned, 8)));
  // Without a given number of ranks, the plan is for the ranks that the sizes need.
  CHECK(on_gpu(loaded({"distributed.tp_size=4", "distributed.cp_size=2"}, kPlanned, 0)));
  // Its memory is the usual one of such a GPU.
  CHECK(device_memory(loaded({}, kPlanned, 8)) == 80e9);
  CHECK(device_memory(loaded({}, kPlanned, 4)) == 0);
}

TEST_CASE("a plan says whether its ranks use GPUs") {
  const auto on_gpus = [](const Overrides& set) {
    return uses_gpus(make_plan(loaded(set, kPlanned), 1, 512));
  };
  CHECK(on_gpus({"hardware.gpu=h200"}));
  CHECK_FALSE(on_gpus({"hardware.gpu=h200", "train.device=cpu"}));
}

TEST_CASE("a dry run says what device it is for, and whether the plan fits it") {
  const auto text = [](const Overrides& set, int64_t world) {
    const Recipe r = loaded(set, kPlanned, world);
    const RunPlan plan = make_plan(r, world, 512);
    return device_text(r, plan) + "; " + fit_text(r, plan);
  };
  CHECK_THAT(text({"hardware.gpu=h200", "hardware.gpus_per_node=4"}, 1),
             Contains("h200 for each rank") && Contains("4 in a node") &&
                 Contains("of 131 GiB planned: fits"));
  CHECK_THAT(text({"hardware.gpu=h200", "hardware.memory_gb=0.01"}, 1),
             Contains("of 9.54 MiB planned: does not fit"));
  CHECK_THAT(text({"train.device=cpu"}, 1), Contains("CPU") && Contains("of this host's"));
  CHECK_THAT(text({"train.device=cpu", "train.global_batch_size=4096"}, 4096),
             !Contains("of this host's"));
}

TEST_CASE("ranks that need NCCL are refused on a machine without a GPU") {
  const auto refused = [](const Overrides& set, const Machine& machine) {
    const Recipe r = loaded(set, machine);
    Diagnostics diagnostics;
    check_machine(r, machine, diagnostics);
    return diagnostics.text(Severity::error);
  };
  const Overrides nccl{"dist_env.backend=nccl"};
  CHECK_THAT(refused(nccl, kStarted), Contains("no GPU") && Contains("set comm.backend=auto"));
  CHECK(refused(nccl, {.gpus = 1}).empty());
  CHECK(refused({"dist_env.backend=nccl", "train.device=cuda"}, kStarted).empty());
  CHECK(refused({}, kStarted).empty());
}

}  // namespace plan_device_test
