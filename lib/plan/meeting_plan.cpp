#include "plan/meeting_plan.h"

#include "plan/cuda_graphs.h"
#include "plan/layout.h"
#include "plan/options/recipe_options.h"
#include "plan/overlap.h"
#include "plan/plan_text.h"
#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

DevicePlan device_plan(const Recipe& r, int64_t world, const Overlap& overlap) {
  DevicePlan device = device_plan_without_overlap(r);
  device.norm_sm_margin = overlap.layernorm_sm_margin;
  device.gemm_sm_margin = overlap.gemm_sm_margin;
  device.dependent_launch = overlap.programmatic_dependent_launch;
  if (device.kind != DeviceKind::cuda) return device;
  device.environment["CUDA_DEVICE_MAX_CONNECTIONS"] =
      std::to_string(overlap.cuda_device_max_connections);
  // A kernel that is loaded at its first launch may wait for all running kernels. If one of these
  // is NCCL's, it may wait for a peer that loads a kernel, too.
  if (world > 1) device.environment["CUDA_MODULE_LOADING"] = "EAGER";
  // If NCCL registers the memory of a call, all its ranks must record the call. One rank may have
  // to launch it instead, for example for a micro-batch with padding.
  const CudaGraphs graphs = resolve_cuda_graphs(r, layout_of(r, world), overlap);
  if (graphs.on && graphs.communicates) device.environment["NCCL_GRAPH_REGISTER"] = "0";
  return device;
}

MeetingPlan meeting_plan(const Recipe& r, int64_t world) {
  return {.folders = folder_options(r),
          .checkpoint = checkpoint_options(r),
          .device = device_plan(r, world, resolve_overlap(r, layout_of(r, world))),
          .comm = comm_options(r),
          .limits = {.start_s = r.launch.start_timeout_s,
                     .save_s = r.launch.save_timeout_s,
                     .step_s = r.launch.step_timeout_s},
          .faults = fault_options(r),
          .recipe = compared_recipe(r)};
}

MeetingPlan meeting_plan(const RunPlan& plan) {
  return {.folders = plan.folders,
          .checkpoint = plan.checkpoint,
          .device = plan.device,
          .comm = plan.comm,
          .limits = {},
          .faults = plan.debug.faults,
          .recipe = plan.text.recipe};
}

}  // namespace mtrain::plan
