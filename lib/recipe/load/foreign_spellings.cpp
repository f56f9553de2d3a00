// Lists names of other systems whose values are in other units or words than ours.
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

// A text that is neither true nor false is passed on, so that the field's own message refuses it.
std::string choose(const std::string& text, const char* if_true, const char* if_false) {
  return truth(text) ? if_true : falsehood(text) ? if_false : text;
}

std::string minutes_to_seconds(const std::string& text) {
  double minutes = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), minutes);
  if (error != std::errc() || stop != text.data() + text.size()) return text;
  return fmt::format("{}", minutes * 60);
}

// torch's DDP counts a bucket in MiB of fp32 gradients.
std::string mib_to_parameters(const std::string& text) {
  double mib = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), mib);
  if (error != std::errc() || stop != text.data() + text.size() || !(mib <= 1 << 20)) return text;
  return fmt::format("{}", int64_t(mib * (1 << 20) / 4));
}

std::string negative_is_zero(const std::string& text) { return text.starts_with('-') ? "0" : text; }

// Whether switches such as bf16: true name a precision; false sets nothing.
std::string bf16_if(const std::string& text) { return choose(text, "bf16_mixed", ""); }
std::string fp16_if(const std::string& text) { return choose(text, "fp16_mixed", ""); }
std::string zero_unless(const std::string& text) { return choose(text, "", "0"); }
std::string not_of(const std::string& text) { return choose(text, "false", "true"); }

}  // namespace

const std::vector<ForeignSpelling>& foreign_spellings() {
  static const std::vector<ForeignSpelling> list{
      {"model.gated_linear_unit", "model.activation",
       [](const std::string& t) { return choose(t, "swiglu", "gelu"); }},
      {"dist.use_megatron_fsdp", "distributed.strategy",
       [](const std::string& t) { return choose(t, "megatron_fsdp", ""); }},
      {"ddp.use_megatron_fsdp", "distributed.strategy",
       [](const std::string& t) { return choose(t, "megatron_fsdp", ""); }},
      {"dist.use_torch_fsdp2", "distributed.strategy",
       [](const std::string& t) { return choose(t, "fsdp2", ""); }},
      {"model.cuda_graph_impl", "train.enable_cuda_graph",
       [](const std::string& t) {
         const std::string word = to_lower(t);
         return word == "local" || word == "transformer_engine" ? "true"
                : word == "none"                                ? "false"
                                                                : t;
       }},
      {"distributed.bucket_cap_mb", "ddp.bucket_size", mib_to_parameters},
      {"distributed.enable_fsdp2_prefetch", "distributed.fsdp2_forward_prefetch_depth",
       zero_unless},
      {"distributed.enable_fsdp2_prefetch", "distributed.fsdp2_backward_prefetch_depth",
       zero_unless},
      {"checkpoint.most_recent_k", "checkpoint.keep", negative_is_zero},
      {"mixed_precision.bf16", "mixed_precision.name", bf16_if},
      {"mixed_precision.fp16", "mixed_precision.name", fp16_if},
      {"model.bf16", "mixed_precision.name", bf16_if},
      {"model.fp16", "mixed_precision.name", fp16_if},
      {"optimizer.bf16", "mixed_precision.name", bf16_if},
      {"optimizer.fp16", "mixed_precision.name", fp16_if},
      {"fp8.enabled", "mixed_precision.fp8",
       [](const std::string& t) { return choose(t, "hybrid", "none"); }},
      // Megatron gates by a switch beside it.
      {"model.activation_func", "model.activation",
       [](const std::string& t) { return t == "silu" ? std::string("swiglu") : t; }},
      {"model.swiglu", "model.activation",
       [](const std::string& t) { return choose(t, "swiglu", ""); }},
      {"model.disable_bias_linear", "model.add_bias_linear", not_of},
      // Megatron's rate is 1e-3 unless it is given.
      {"model.moe_router_enable_expert_bias", "model.moe.router_bias_update_rate",
       [](const std::string& t) { return choose(t, "0.001", "0"); }},
      {"model.moe_expert_capacity_factor", "model.moe.expert_capacity_factor",
       [](const std::string& t) { return t == "-1" || t == "-1.0" ? std::string("none") : t; }},
      {"model.untie_embeddings_and_output_weights", "model.share_embeddings_and_output_weights",
       not_of},
      {"model.recompute_activations", "recompute.granularity",
       [](const std::string& t) { return choose(t, "selective", ""); }},
      {"dist_env.timeout_minutes", "comm.timeout_s", minutes_to_seconds},
      {"dist.distributed_timeout_minutes", "comm.timeout_s", minutes_to_seconds},
  };
  return list;
}

const PrecisionPreset* find_precision_preset(std::string_view name) {
  static constexpr std::string_view kGather = "parameters travel in bf16";
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
    return sets;
  };
  const auto current = [&](std::string_view type) {
    auto sets = with_fp8(type, "hybrid", "tensorwise");
    sets.emplace_back("mixed_precision.first_last_layers_bf16", "true");
    return sets;
  };
  static const std::vector<PrecisionPreset> list{
      {"bf16_with_fp8_delayed_scaling_mixed", delayed("bf16_mixed"), kGather},
      {"fp16_with_fp8_delayed_scaling_mixed", delayed("fp16_mixed"), kGather},
      {"bf16_with_fp8_current_scaling_mixed", current("bf16_mixed"), kGather},
      {"fp16_with_fp8_current_scaling_mixed", current("fp16_mixed"), kGather},
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
