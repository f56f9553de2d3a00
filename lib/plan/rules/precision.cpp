// Rules of element types: settings that name them in two places must agree.
#include <fmt/core.h>

#include "plan/rules/rules.h"

namespace mtrain::plan {
recipe::ElementType weights_type(recipe::Precision precision) {
  switch (precision) {
    case recipe::Precision::fp32: return recipe::ElementType::fp32;
    case recipe::Precision::bf16_mixed: return recipe::ElementType::bf16;
    case recipe::Precision::fp16_mixed: return recipe::ElementType::fp16;
  }
  return recipe::ElementType::bf16;
}

namespace {

// Reports the effect of types of outputs, inputs and messages that differ from the weights' type.
void note_types(const Recipe& r, recipe::ElementType own, Diagnostics& diagnostics) {
  const auto& d = r.distributed;
  const auto& output = d.mp_policy.output_dtype;
  const bool pipeline = d.pp_size > 1;
  const auto field = [](const char* name) { return std::string("distributed.mp_policy.") + name; };
  if (output && *output != own) {
    const char* stages = pipeline && !d.pipeline.dtype ? "; stages exchange activations in it" : "";
    diagnostics.resolved(field("output_dtype"),
                         *output == recipe::ElementType::fp32
                             ? fmt::format("the loss reads logits in fp32 in any case{}", stages)
                             : fmt::format("logits and their gradients are rounded to {}{}",
                                           enum_name(*output), stages));
  }
  if (!d.mp_policy.cast_forward_inputs)
    diagnostics.resolved(field("cast_forward_inputs"),
                         "false has no effect: a unit's inputs are token ids, or activations that "
                         "have the weights' type already");
  const auto& message = d.pipeline.dtype;
  if (!pipeline || !message || *message == own) return;
  diagnostics.warn("distributed.pipeline.dtype",
                   *message == recipe::ElementType::fp32
                       ? fmt::format("messages between stages take twice the bytes and carry no "
                                     "more: stages compute in {}",
                                     enum_name(own))
                       : fmt::format("messages between stages are rounded to {}, while stages "
                                     "compute in {}",
                                     enum_name(*message), enum_name(own)),
                   "leave it out");
}

void check_fp16(const Recipe& r, Diagnostics& diagnostics) {
  const auto& p = r.mixed_precision;
  const bool fp16 = p.name == recipe::Precision::fp16_mixed;
  diagnostics.require(fp16 || r.distributed.mp_policy.reduce_dtype != recipe::ElementType::fp16,
                      {"distributed.mp_policy.reduce_dtype", "mixed_precision.name"},
                      "small gradients would become 0 in fp16 without the loss scale of fp16_mixed",
                      "use bf16 or fp32, or mixed_precision: fp16_mixed");
  diagnostics.require(!fp16 || r.optimizer.master_weights,
                      {"optimizer.master_weights", "mixed_precision.name"},
                      "fp16 weights are too coarse to be updated without fp32 master weights",
                      "set master_weights: true, or mixed_precision: bf16_mixed");
  for (const char* field : {"mixed_precision.initial_loss_scale", "mixed_precision.min_loss_scale",
                            "mixed_precision.loss_scale_window", "mixed_precision.hysteresis"}) {
    if (!r.given(field)) continue;
    if (!fp16 || p.loss_scale)
      diagnostics.warn(field, "is ignored: it is only for the dynamic loss scale of fp16_mixed");
  }
  diagnostics.require(!fp16 || p.loss_scale || p.initial_loss_scale >= p.min_loss_scale,
                      {"mixed_precision.initial_loss_scale", "mixed_precision.min_loss_scale"},
                      fmt::format("initial_loss_scale {} is below min_loss_scale {}",
                                  p.initial_loss_scale, p.min_loss_scale),
                      "lower min_loss_scale");
}

}  // namespace

void validate_precision(const Recipe& r, Diagnostics& diagnostics) {
  const auto& p = r.mixed_precision;
  const recipe::ElementType own = weights_type(p.name);
  const auto agree = [&](const char* field, const recipe::Auto<recipe::ElementType>& type) {
    diagnostics.require(!type || *type == own, {field, "mixed_precision.name"},
                        fmt::format("{} disagrees with mixed_precision {}",
                                    type ? enum_name(*type) : "", enum_name(p.name)),
                        "set the precision once, as mixed_precision.name");
  };
  agree("mixed_precision.params_dtype", p.params_dtype);
  agree("distributed.mp_policy.param_dtype", r.distributed.mp_policy.param_dtype);
  note_types(r, own, diagnostics);
  const auto& reduce = r.distributed.mp_policy.reduce_dtype;
  diagnostics.require(!reduce || !r.given("mixed_precision.grad_reduce_in_fp32") ||
                          (*reduce == recipe::ElementType::fp32) == p.grad_reduce_in_fp32,
                      {"distributed.mp_policy.reduce_dtype", "mixed_precision.grad_reduce_in_fp32"},
                      fmt::format("reduce_dtype {} disagrees with grad_reduce_in_fp32: {}",
                                  reduce ? enum_name(*reduce) : "", p.grad_reduce_in_fp32),
                      "set one of the two");
  diagnostics.require(!p.loss_scale || p.name == recipe::Precision::fp16_mixed,
                      {"mixed_precision.loss_scale", "mixed_precision.name"},
                      fmt::format("a loss scale is for fp16_mixed, not for {}", enum_name(p.name)),
                      "remove it");
  check_fp16(r, diagnostics);
}

}  // namespace mtrain::plan
