// Lists the features that recipes may ask for and this build cannot run yet, one call of missing()
// for each. Remove the call when you build its feature.
#include <fmt/core.h>

#include "plan/layout.h"
#include "plan/rules/rules.h"
#include "plan/rules/unsupported.h"

namespace mtrain::plan {

namespace {

// Features of experts that are spread over ranks.
template <class Missing>
void check_built_expert_ranks(const Recipe& r, const Missing& missing) {
  const recipe::MoeConfig& moe = r.model.moe;
  const recipe::DistributedConfig& d = r.distributed;
  const bool gathered = d.tp_size > 1 && d.sequence_parallel && expert_tp(r) > 1;
  missing(gathered && moe.token_dispatcher == TokenDispatch::flex, "model.moe.token_dispatcher",
          "the flex dispatcher for experts that are divided over tp",
          "use alltoall, or set distributed.expert_tp_size: 1");
  const auto& head = r.distributed.moe.lm_head_precision;
  missing(
      head && *head != recipe::ElementType::fp32 && *head != weights_type(r.mixed_precision.name),
      "distributed.moe.lm_head_precision", "an output layer with another 16-bit type",
      "set it to float32, or leave it out");
}

template <class Missing>
void check_experts(const Recipe& r, const Missing& missing) {
  const recipe::MoeConfig& moe = r.model.moe;
  if (moe.num_experts == 0) return;
  const auto& d = r.distributed;
  if (d.ep_size > 1) check_built_expert_ranks(r, missing);
  missing(moe.num_experts > 2048, "model.moe.num_experts", "more than 2048 experts in a layer",
          "use at most 2048");
  missing(!r.model.gated(), "model.activation", "experts without a gate", "use swiglu or geglu");
  missing(r.model.add_bias_linear, "model.add_bias_linear", "experts with biases",
          "set it to false");
  missing(r.model.mlp_bias, "model.mlp_bias", "experts with biases", "set it to false");
}

template <class Missing>
void check_float8(const Recipe& r, const Missing& missing) {
  const auto& p = r.mixed_precision;
  if (p.fp8 == recipe::Fp8Format::none) return;
  missing(p.name == recipe::Precision::fp16_mixed, "mixed_precision.fp8", "8-bit GEMMs with fp16",
          "use mixed_precision.name: bf16_mixed");
  missing(r.train.device != recipe::DeviceChoice::cuda && !r.debug.emulate_fp8,
          "mixed_precision.fp8", "fast 8-bit GEMMs on a CPU",
          "set train.device: cuda; or debug.emulate_fp8: true, to try what they compute");
}

}  // namespace

void check_supported(const Recipe& r, Diagnostics& diagnostics) {
  const auto missing = [&](bool asked, const char* field, const char* what, const char* hint = "") {
    if (asked) diagnostics.add(field, fmt::format("not supported yet: {}", what), hint);
  };
  const auto& d = r.distributed;
  bool gpu_only = false;
  for (const auto& [product, gemm] : r.comm_overlap.tp_comm_overlap_cfg.gemms)
    gpu_only = gpu_only || gemm.atomic_gemm || gemm.fp8_buf;
  missing(gpu_only, "comm_overlap.tp_comm_overlap_cfg", "atomic_gemm and fp8_buf",
          "leave them out");
  missing(r.train.straggler == recipe::OnStraggler::replace && d.ep_size > 1, "train.straggler",
          "replace with experts, whose ranks have unequal work", "set it to off");
  const bool fp16 = r.mixed_precision.name == recipe::Precision::fp16_mixed;
  missing(d.pp_size > 1 && d.pipeline.dtype == recipe::ElementType::fp16 && !fp16,
          "distributed.pipeline.dtype", "activations that travel in fp16 between bf16 stages",
          "use bf16 or fp32");
  missing(d.mp_policy.output_dtype == recipe::ElementType::fp16 && !fp16,
          "distributed.mp_policy.output_dtype", "fp16 outputs of bf16 weights", "use bf16 or fp32");
  check_experts(r, missing);
  check_float8(r, missing);
}

}  // namespace mtrain::plan
