// Rules of element types: settings that name them in two places must agree.
#include <algorithm>

#include <fmt/core.h>

#include "plan/rules/rules.h"

namespace mtrain::plan {
namespace {

recipe::ElementType type_of(recipe::Precision precision) {
  switch (precision) {
    case recipe::Precision::fp32: return recipe::ElementType::fp32;
    case recipe::Precision::bf16_mixed: return recipe::ElementType::bf16;
    case recipe::Precision::fp16_mixed: return recipe::ElementType::fp16;
  }
  return recipe::ElementType::bf16;
}

// Tells what types of outputs, inputs and messages mean where they differ from the weights'.
void note_types(const Recipe& r, recipe::ElementType own, Diagnostics& diagnostics) {
  const auto& d = r.distributed;
  const auto& output = d.mp_policy.output_dtype;
  const bool pipeline = d.pp_size > 1;
  const auto field = [](const char* name) { return std::string("distributed.mp_policy.") + name; };
  if (output && *output != own) {
    const char* stages = pipeline && !d.pipeline.dtype ? "; stages exchange activations in it" : "";
    diagnostics.resolved(
        field("output_dtype"),
        *output == recipe::ElementType::fp32
            ? fmt::format("the loss reads logits in fp32 whatever it says{}", stages)
            : fmt::format("logits and their gradients are rounded to {}{}", enum_name(*output),
                          stages));
  }
  if (!d.mp_policy.cast_forward_inputs)
    diagnostics.resolved(field("cast_forward_inputs"),
                         "false has no meaning here: a unit's inputs are token ids, or activations "
                         "that have the weights' type already");
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

// Rows of 8-bit operands begin at multiples of 16 bytes.
constexpr int64_t kMultiple = 16;

void check_float8(const Recipe& r, Diagnostics& diagnostics) {
  const auto& p = r.mixed_precision;
  const bool fp8 = p.fp8 != recipe::Fp8Format::none,
             delayed = p.fp8_recipe == recipe::Fp8Recipe::delayed;
  diagnostics.require(!r.debug.emulate_fp8 || fp8, {"debug.emulate_fp8", "mixed_precision.fp8"},
                      "is on, but there are no 8-bit products (mixed_precision.fp8 is none)",
                      "set mixed_precision.fp8: hybrid, or remove it");
  if (!fp8) return;
  diagnostics.require(
      delayed || (p.fp8_amax_history_len == 1 &&
                  p.fp8_amax_compute_algo == recipe::Fp8AmaxChoice::most_recent),
      {"mixed_precision.fp8_amax_history_len", "mixed_precision.fp8_amax_compute_algo",
       "mixed_precision.fp8_recipe"},
      fmt::format("fp8_recipe {} keeps no history of maxima", enum_name(p.fp8_recipe)),
      "set mixed_precision.fp8_recipe: delayed, or remove them");
  const auto& m = r.model;
  const int64_t tp = std::max<int64_t>(1, r.distributed.tp_size), D = m.head_dim();
  const auto multiple = [&](const char* field, const char* what, int64_t n) {
    diagnostics.require(
        n % kMultiple == 0, {field, "mixed_precision.fp8"},
        fmt::format("8-bit products need {} of a rank to be a multiple of {}, not {}", what,
                    kMultiple, n),
        "change it, or remove mixed_precision.fp8");
  };
  const int64_t q = m.num_attention_heads / tp * D,
                kv = std::max<int64_t>(1, m.kv_heads() / tp) * D;
  multiple("model.hidden_size", "hidden_size", m.hidden_size);
  multiple("model.ffn_hidden_size", "ffn_hidden_size", m.ffn_size() / tp);
  multiple("model.num_attention_heads", "heads times their size", q);
  if (q % kMultiple == 0)
    multiple("model.num_query_groups", "the width of queries, keys and values", q + 2 * kv);
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
      diagnostics.warn(field, "is for the dynamic loss scale of fp16_mixed alone: it is ignored");
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
  const recipe::ElementType own = type_of(p.name);
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

  const bool fp8 = p.fp8 != recipe::Fp8Format::none;
  diagnostics.require(!p.fp8_param_gather || fp8,
                      {"mixed_precision.fp8_param_gather", "mixed_precision.fp8"},
                      "is on, but there are no 8-bit products (mixed_precision.fp8 is none)",
                      "set mixed_precision.fp8: hybrid, or remove it");
  diagnostics.require(!fp8 || p.name != recipe::Precision::fp32,
                      {"mixed_precision.fp8", "mixed_precision.name"},
                      "8-bit products need bf16_mixed", "set mixed_precision.name");
  const bool cpu = r.train.device == recipe::DeviceChoice::cpu;
  const bool emulate = r.debug.emulate_fp8 && r.train.device != recipe::DeviceChoice::cuda;
  diagnostics.require(
      !fp8 || emulate || (!cpu && compute_capability(r.hardware.gpu) >= 9),
      {"mixed_precision.fp8", "hardware.gpu", "train.device"},
      fmt::format("{} has no 8-bit matrix products",
                  cpu ? "a CPU" : std::string(enum_name(r.hardware.gpu))),
      cpu ? "set train.device: cuda; or debug.emulate_fp8: true, to try what it computes"
          : "remove fp8, or set hardware.gpu to h100 or newer");
  check_float8(r, diagnostics);
  diagnostics.require(!p.loss_scale || p.name == recipe::Precision::fp16_mixed,
                      {"mixed_precision.loss_scale", "mixed_precision.name"},
                      fmt::format("a loss scale is for fp16_mixed, not for {}", enum_name(p.name)),
                      "remove it");
  check_fp16(r, diagnostics);
}

}  // namespace mtrain::plan
