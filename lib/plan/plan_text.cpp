#include "plan/plan_text.h"

#include <algorithm>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "plan/recompute_cost.h"
#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

namespace {

std::string model_text(const recipe::ModelConfig& m, int64_t vocab) {
  std::string text = fmt::format("{}: {} layers, hidden {}, {} heads ({} kv) of {}, ffn {}",
                                 enum_name(m.architecture), m.num_layers, m.hidden_size,
                                 m.num_attention_heads, m.kv_heads(), m.head_dim(), m.ffn_size());
  if (m.moe.num_experts > 0)
    text += fmt::format(", {} experts of {} (top {})", m.moe.num_experts,
                        m.moe.ffn_hidden_size.value_or(m.ffn_size()), m.moe.router_topk);
  if (m.mtp_num_layers > 0) text += fmt::format(", {} further tokens predicted", m.mtp_num_layers);
  text += fmt::format(", vocabulary {}", vocab);
  if (m.share_embeddings_and_output_weights) text += ", tied";
  if (!m.ignore_keys.empty())
    text += fmt::format("; without {} of config.json (model.ignore_keys)",
                        fmt::join(m.ignore_keys, ", "));
  return text;
}

std::string precision_text(const recipe::MixedPrecisionConfig& p, const RunPlan& plan) {
  if (p.name == recipe::Precision::fp16_mixed)
    return fmt::format("{}, {}", enum_name(p.name),
                       p.loss_scale
                           ? fmt::format("loss scale {}", *p.loss_scale)
                           : fmt::format("loss scale dynamic from {}", p.initial_loss_scale));
  if (p.fp8 == recipe::Fp8Format::none) return std::string(enum_name(p.name));
  const Fp8Options& fp8 = plan.fp8;
  const std::string layers =
      fp8.begin > 0 || fp8.end < plan.model.layer_count()
          ? fmt::format(" of {} of {} layers", fp8.end - fp8.begin, plan.model.layer_count())
          : "";
  return fmt::format("{}, linears{} in 8 bits ({}, {}; {})", enum_name(p.name), layers,
                     enum_name(p.fp8), enum_name(p.fp8_recipe),
                     print_fp8_weight_cache(plan.fp8_weights));
}

std::string recompute_text(const recipe::RecomputeConfig& r, const RunPlan& plan) {
  std::string text(enum_name(r.granularity));
  if (r.granularity == recipe::RecomputeGranularity::full && r.num_layers)
    text +=
        fmt::format(", {} {}", r.method == recipe::RecomputeMethod::block ? "first" : "groups of",
                    *r.num_layers);
  if (r.granularity == recipe::RecomputeGranularity::selective)
    for (const recipe::RecomputeModule module : r.modules)
      text += fmt::format("{}{}", module == r.modules.front() ? ": " : ", ", enum_name(module));
  const double percent = 100 * recomputed_share(plan);
  if (percent >= 0.05) text += fmt::format(", +{:.1f} % FLOPs", percent);
  return text;
}

std::string context_text(const std::vector<ContextMethod>& types) {
  std::string text;
  for (const ContextMethod t :
       {ContextMethod::p2p, ContextMethod::all_gather, ContextMethod::a2a, ContextMethod::a2a_p2p})
    if (std::ranges::count(types, t))
      text += (text.empty() ? "" : " and ") + std::string(enum_name(t));
  return text;
}

}  // namespace

std::string compared_recipe(const Recipe& r) {
  // Clears what may differ between hosts: their environment variables, and a GPU's memory that the
  // recipe does not set. A run may resume on another host.
  Recipe everywhere = r;
  everywhere.launch.env.clear();
  if (!r.given("hardware.memory_gb")) everywhere.hardware.memory_gb = {};
  return print_recipe(everywhere, false);
}

PlanText plan_text(const Recipe& r, const RunPlan& plan, int64_t vocab) {
  const recipe::PipelineConfig& pipeline = r.distributed.pipeline;
  return {.model = model_text(r.model, vocab),
          .precision = precision_text(r.mixed_precision, plan),
          .recompute = recompute_text(r.recompute, plan),
          .strategy = std::string(enum_name(r.distributed.strategy)),
          .context = context_text(r.distributed.cp_comm_type),
          .experts = std::string(enum_name(r.model.moe.token_dispatcher)),
          .schedule = pipeline.pp_schedule_csv ? *pipeline.pp_schedule_csv
                                               : std::string(enum_name(pipeline.pp_schedule)),
          .recipe = compared_recipe(r),
          .recipe_with_origins = print_recipe(r)};
}

}  // namespace mtrain::plan
