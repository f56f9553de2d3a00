// Lists names of other systems whose values have different units or words from mtrain's.
#include <charconv>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/load/raw_settings.h"

namespace mtrain::recipe {
namespace {

bool truth(const std::string& text) {
  const std::string word = to_lower(text);
  return word == "true" || word == "yes" || word == "on";
}

bool falsehood(const std::string& text) {
  const std::string word = to_lower(text);
  return word == "false" || word == "no" || word == "off" || word.empty();
}

// A text that is neither true nor false does not change; the field then refuses it.
std::string choose(const std::string& text, const char* if_true, const char* if_false) {
  return truth(text) ? if_true : falsehood(text) ? if_false : text;
}

std::string minutes_to_seconds(const std::string& text) {
  double minutes = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), minutes);
  if (error != std::errc() || stop != text.data() + text.size()) return text;
  return fmt::format("{}", minutes * 60);
}

// torch's DDP gives the size of a bucket in MiB of fp32 gradients.
std::string mib_to_parameters(const std::string& text) {
  double mib = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), mib);
  if (error != std::errc() || stop != text.data() + text.size() || !(mib <= 1 << 20)) return text;
  return fmt::format("{}", int64_t(mib * (1 << 20) / 4));
}

std::string negative_is_zero(const std::string& text) { return text.starts_with('-') ? "0" : text; }

std::string unchanged(const std::string& text) { return text; }

std::string not_of(const std::string& text) { return choose(text, "false", "true"); }

}  // namespace

// The parts of a field are applied in the order of these rows.
const std::vector<ForeignSpelling>& foreign_spellings() {
  const auto choice = [](std::string_view path, std::string_view target, std::string_view on,
                         std::string_view off) {
    return ForeignSpelling{
        .path = path, .target = target, .part = Part::choice, .on = on, .off = off};
  };
  const auto toggle = [](std::string_view path, std::string_view target, std::string_view on,
                         std::string_view off) {
    return ForeignSpelling{
        .path = path, .target = target, .part = Part::toggle, .on = on, .off = off};
  };
  static const std::vector<ForeignSpelling> list{
      {.path = "optimizer.adam_beta1", .target = "optimizer.betas", .part = Part::beta},
      {.path = "optimizer.adam_beta2", .target = "optimizer.betas", .part = Part::beta},
      // If megatron_fsdp or fsdp2 is switched off, Megatron uses its own DDP.
      choice("dist.use_megatron_fsdp", "distributed.strategy", "megatron_fsdp", "megatron_ddp"),
      choice("ddp.use_megatron_fsdp", "distributed.strategy", "megatron_fsdp", "megatron_ddp"),
      choice("dist.use_torch_fsdp2", "distributed.strategy", "fsdp2", "megatron_ddp"),
      {"model.cuda_graph_impl", "train.enable_cuda_graph",
       [](const std::string& t) {
         const std::string word = to_lower(t);
         return word == "local" || word == "transformer_engine" ? "true"
                : word == "none"                                ? "false"
                                                                : t;
       }},
      {"distributed.bucket_cap_mb", "ddp.bucket_size", mib_to_parameters},
      toggle("distributed.enable_fsdp2_prefetch", "distributed.fsdp2_forward_prefetch_depth", "1",
             "0"),
      toggle("distributed.enable_fsdp2_prefetch", "distributed.fsdp2_backward_prefetch_depth", "2",
             "0"),
      {"checkpoint.most_recent_k", "checkpoint.keep", negative_is_zero},
      choice("mixed_precision.bf16", "mixed_precision.name", "bf16_mixed", "fp32"),
      choice("mixed_precision.fp16", "mixed_precision.name", "fp16_mixed", "fp32"),
      choice("model.bf16", "mixed_precision.name", "bf16_mixed", "fp32"),
      choice("model.fp16", "mixed_precision.name", "fp16_mixed", "fp32"),
      choice("optimizer.bf16", "mixed_precision.name", "bf16_mixed", "fp32"),
      choice("optimizer.fp16", "mixed_precision.name", "fp16_mixed", "fp32"),
      toggle("fp8.enabled", "mixed_precision.fp8", "hybrid", "none"),
      {.path = "model.activation_func", .target = "model.activation", .part = Part::function},
      {.path = "model.gated_linear_unit", .target = "model.activation", .part = Part::gate},
      choice("model.swiglu", "model.activation", "swiglu", "gelu"),
      {"model.disable_bias_linear", "model.add_bias_linear", not_of},
      {.path = "model.moe_router_bias_update_rate",
       .target = "model.moe.router_bias_update_rate",
       .part = Part::rate},
      // Megatron's default rate is 1e-3.
      toggle("model.moe_router_enable_expert_bias", "model.moe.router_bias_update_rate", "0.001",
             "0"),
      choice("model.moe_router_force_load_balancing", "debug.route", "balanced", "none"),
      choice("model.backend.fake_balanced_gate", "debug.route", "balanced", "none"),
      {"model.moe_expert_capacity_factor", "model.moe.expert_capacity_factor",
       [](const std::string& t) { return t == "-1" || t == "-1.0" ? std::string("none") : t; }},
      {"model.untie_embeddings_and_output_weights", "model.share_embeddings_and_output_weights",
       not_of},
      choice("model.recompute_activations", "recompute.granularity", "selective", "none"),
      // Megatron-Bridge's variables of the ranks that have a setting here.
      {"env_vars.CUDA_DEVICE_MAX_CONNECTIONS", "launch.cuda_device_max_connections", unchanged},
      {.path = "env_vars.NVTE_FWD_LAYERNORM_SM_MARGIN",
       .target = "launch.layernorm_sm_margin",
       .part = Part::margin},
      {.path = "env_vars.NVTE_BWD_LAYERNORM_SM_MARGIN",
       .target = "launch.layernorm_sm_margin",
       .part = Part::margin},
      {"dist_env.timeout_minutes", "comm.timeout_s", minutes_to_seconds},
      {"dist.distributed_timeout_minutes", "comm.timeout_s", minutes_to_seconds},
  };
  return list;
}

const PrecisionPreset* find_precision_preset(std::string_view name) {
  static constexpr std::string_view kGather =
      "parameters are gathered in bf16, since mxfp8 has other 8-bit weights for backward";
  const auto with_fp8 = [](std::string_view type, std::string_view fp8, std::string_view recipe) {
    return std::vector<std::pair<std::string_view, std::string_view>>{
        {"mixed_precision.name", type},
        {"mixed_precision.fp8", fp8},
        {"mixed_precision.fp8_recipe", recipe}};
  };
  const auto delayed = [&](std::string_view type) {
    auto sets = with_fp8(type, "hybrid", "delayed");
    sets.emplace_back("mixed_precision.fp8_amax_history_len", "1024");
    sets.emplace_back("mixed_precision.fp8_amax_compute_algo", "max");
    sets.emplace_back("mixed_precision.fp8_param_gather", "true");
    return sets;
  };
  const auto current = [&](std::string_view type) {
    auto sets = with_fp8(type, "hybrid", "tensorwise");
    sets.emplace_back("mixed_precision.first_last_layers_bf16", "true");
    sets.emplace_back("mixed_precision.fp8_param_gather", "true");
    return sets;
  };
  static const std::vector<PrecisionPreset> list{
      {"bf16_with_fp8_delayed_scaling_mixed", delayed("bf16_mixed"), {}},
      {"fp16_with_fp8_delayed_scaling_mixed", delayed("fp16_mixed"), {}},
      {"bf16_with_fp8_current_scaling_mixed", current("bf16_mixed"), {}},
      {"fp16_with_fp8_current_scaling_mixed", current("fp16_mixed"), {}},
      {"bf16_with_fp8_subchannel_scaling_mixed", with_fp8("bf16_mixed", "hybrid", "blockwise"), {}},
      {"fp16_with_fp8_subchannel_scaling_mixed", with_fp8("fp16_mixed", "hybrid", "blockwise"), {}},
      {"bf16_with_mxfp8_mixed", with_fp8("bf16_mixed", "e4m3", "mxfp8"), kGather},
      {"fp16_with_mxfp8_mixed", with_fp8("fp16_mixed", "e4m3", "mxfp8"), kGather}};
  const std::string folded = fold_name(name);
  for (const PrecisionPreset& preset : list)
    if (fold_name(preset.name) == folded) return &preset;
  return nullptr;
}

}  // namespace mtrain::recipe
