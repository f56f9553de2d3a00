// Lists the features that recipes may ask for and this build cannot run yet, one call of missing()
// for each. The call is removed when its feature is built.
#include <algorithm>

#include <fmt/core.h>

#include "plan/rules/unsupported.h"

namespace mtrain::plan {

namespace {

recipe::ElementType own_type(const Recipe& r) {
  switch (r.mixed_precision.name) {
    case recipe::Precision::fp32: return recipe::ElementType::fp32;
    case recipe::Precision::fp16_mixed: return recipe::ElementType::fp16;
    default: return recipe::ElementType::bf16;
  }
}

template <class Missing>
void check_pipeline(const Recipe& r, const Missing& missing) {
  if (r.distributed.pp_size == 1) return;
  const auto& dtype = r.distributed.pipeline.dtype;
  missing(dtype && *dtype != own_type(r), "distributed.pipeline.dtype",
          "activations that travel in another type than the weights'", "leave it out");
}

template <class Missing>
void check_float8(const Recipe& r, const Missing& missing) {
  const auto& p = r.mixed_precision;
  if (p.fp8 == recipe::Fp8Format::none) return;
  missing(p.name == recipe::Precision::fp16_mixed, "mixed_precision.fp8",
          "8-bit products beside fp16", "use mixed_precision.name: bf16_mixed");
  missing(p.fp8_recipe == recipe::Fp8Recipe::blockwise || p.fp8_recipe == recipe::Fp8Recipe::mxfp8,
          "mixed_precision.fp8_recipe", "scales of blocks (blockwise, mxfp8)",
          "use tensorwise or delayed");
  missing(p.fp8_param_gather, "mixed_precision.fp8_param_gather",
          "parameters that travel in 8 bits", "leave it out: they travel in bf16");
  missing(r.train.device != recipe::DeviceChoice::cuda && !r.debug.emulate_fp8,
          "mixed_precision.fp8", "fast 8-bit products on a CPU",
          "set train.device: cuda; or debug.emulate_fp8: true, to try what they compute");
}

}  // namespace

void check_supported(const Recipe& r, Diagnostics& diagnostics) {
  const auto missing = [&](bool asked, const char* field, const char* what, const char* hint = "") {
    if (asked) diagnostics.add(field, fmt::format("not built yet: {}", what), hint);
  };
  const auto& d = r.distributed;
  const char* one = "set it to 1";
  missing(d.ep_size > 1, "distributed.ep_size", "expert parallelism (ep_size > 1)", one);
  bool gpu_only = false;
  for (const auto& [product, gemm] : r.comm_overlap.tp_comm_overlap_cfg.gemms)
    gpu_only = gpu_only || gemm.atomic_gemm || gemm.fp8_buf;
  missing(gpu_only, "comm_overlap.tp_comm_overlap_cfg", "atomic_gemm and fp8_buf",
          "leave them out");
  check_pipeline(r, missing);
  const auto& output = d.mp_policy.output_dtype;
  missing(output && *output != own_type(r), "distributed.mp_policy.output_dtype",
          "outputs of another type than the weights", "leave it out");
  missing(!d.mp_policy.cast_forward_inputs, "distributed.mp_policy.cast_forward_inputs",
          "inputs of another type than the weights", "set it to true");
  missing(!r.ddp.check_for_nan_in_grad, "ddp.check_for_nan_in_grad", "leaving this check alone out",
          "debug.check_nan: false leaves out all of them");
  missing(r.model.moe.num_experts > 0, "model.moe.num_experts", "models with experts");
  check_float8(r, missing);
  missing(r.checkpoint.save_consolidated, "checkpoint.save_consolidated", "a second, whole copy");
  missing(r.checkpoint.async, "checkpoint.async", "writing while training goes on");
  bool other_module = false;
  for (const auto module : r.recompute.modules)
    other_module = other_module || module != recipe::RecomputeModule::core_attn;
  missing(r.recompute.granularity == recipe::RecomputeGranularity::selective && other_module,
          "recompute.modules", "modules other than core_attn", "use [core_attn]");
}

}  // namespace mtrain::plan
