// Element types are set in one place; where they are set in two, they agree.
#include <fmt/core.h>

#include "recipe/validate.h"

namespace mtrain {
namespace {

ElementType type_of(Precision precision) {
  switch (precision) {
    case Precision::fp32: return ElementType::fp32;
    case Precision::bf16_mixed: return ElementType::bf16;
    case Precision::fp16_mixed: return ElementType::fp16;
  }
  return ElementType::bf16;
}

}  // namespace

void validate_precision(const Recipe& r, Problems& problems) {
  const auto& p = r.mixed_precision;
  const ElementType own = type_of(p.name);
  const auto agree = [&](const char* field, const Auto<ElementType>& type) {
    problems.require(!type || *type == own, {field, "mixed_precision.name"},
                     fmt::format("{} disagrees with mixed_precision {}",
                                 type ? enum_name(*type) : "", enum_name(p.name)),
                     "set the precision once, as mixed_precision.name");
  };
  agree("mixed_precision.params_dtype", p.params_dtype);
  agree("distributed.mp_policy.param_dtype", r.distributed.mp_policy.param_dtype);
  const auto& reduce = r.distributed.mp_policy.reduce_dtype;
  problems.require(!reduce || !r.given("mixed_precision.grad_reduce_in_fp32") ||
                       (*reduce == ElementType::fp32) == p.grad_reduce_in_fp32,
                   {"distributed.mp_policy.reduce_dtype", "mixed_precision.grad_reduce_in_fp32"},
                   fmt::format("reduce_dtype {} disagrees with grad_reduce_in_fp32: {}",
                               reduce ? enum_name(*reduce) : "", p.grad_reduce_in_fp32),
                   "set one of the two");

  const bool fp8 = p.fp8 != Fp8Format::none;
  problems.require(!p.fp8_param_gather || fp8,
                   {"mixed_precision.fp8_param_gather", "mixed_precision.fp8"},
                   "is on, but there are no 8-bit products (mixed_precision.fp8 is none)",
                   "set mixed_precision.fp8: hybrid, or remove it");
  problems.require(!fp8 || p.name != Precision::fp32,
                   {"mixed_precision.fp8", "mixed_precision.name"},
                   "8-bit products need bf16_mixed or fp16_mixed", "set mixed_precision.name");
  const bool cpu = r.train.device == DeviceChoice::cpu;
  problems.require(!fp8 || (!cpu && compute_capability(r.hardware.gpu) >= 9),
                   {"mixed_precision.fp8", "hardware.gpu", "train.device"},
                   fmt::format("{} has no 8-bit matrix products",
                               cpu ? "a CPU" : std::string(enum_name(r.hardware.gpu))),
                   "remove fp8, or set hardware.gpu to h100 or newer");
  problems.require(!p.loss_scale || p.name == Precision::fp16_mixed,
                   {"mixed_precision.loss_scale", "mixed_precision.name"},
                   fmt::format("a loss scale is for fp16_mixed, not for {}", enum_name(p.name)),
                   "remove it");
}

}  // namespace mtrain
