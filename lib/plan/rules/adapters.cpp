#include <algorithm>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "plan/rules/rules.h"
#include "recipe/adapters.h"
#include "recipe/model_spec.h"

namespace mtrain::plan {

namespace {

// A feature that adapters cannot go together with, and why.
struct Excluded {
  bool asked;
  const char* field;
  const char* reason;
  const char* hint;
};

// Rules of layers with experts. Their matrices have adapters only if the recipe names them.
void validate_expert_adapters(const Recipe& r, const spec::ModelSpec& model, const spec::Lora& lora,
                              Diagnostics& diagnostics) {
  const spec::Experts* experts = model.experts();
  bool adapted = false;
  for (int64_t i = 0; i < model.layer_count(); ++i)
    for (const auto p : {spec::Projection::expert_gate_up, spec::Projection::expert_down})
      adapted = adapted || lora.adapts(i, p);
  if (experts && !adapted)
    diagnostics.resolved("peft.target_modules",
                         "the experts get no adapters; peft.target_modules=[experts] names them");
  if (adapted && r.peft.dropout > 0)
    diagnostics.warn("peft.dropout", "the adapters of experts have none, as in peft and AutoModel",
                     "leave peft.dropout out, or the experts");
  if (!r.peft.moe_rank_scaling) return;
  if (!adapted)
    return diagnostics.warn("peft.moe_rank_scaling", "no expert gets an adapter",
                            "name `experts` in peft.target_modules, or leave it out");
  const int64_t dim = r.peft.dim, k = experts->per_token;
  diagnostics.require(
      dim >= k, {"peft.dim", "peft.moe_rank_scaling", "model.moe.router_topk"},
      fmt::format("peft.moe_rank_scaling divides the rank {} by the {} experts of a token", dim, k),
      fmt::format("set peft.dim to at least {}", k));
  if (dim >= k && dim % k != 0)
    diagnostics.warn("peft.moe_rank_scaling",
                     fmt::format("{} / {} experts of a token is rounded down to the rank {}", dim,
                                 k, lora.expert_dim),
                     fmt::format("set peft.dim to a multiple of {}", k));
}

}  // namespace

void validate_adapters(const Recipe& r, const Overlap& overlap, Diagnostics& diagnostics) {
  if (!r.peft.on()) return;
  const spec::ModelSpec model = recipe::model_spec(r.model);
  const std::string choice =
      fmt::format("name some of {}", fmt::join(recipe::adaptable_modules(r.model, model), ", "));
  const auto uncalled = [](const std::vector<std::string>& patterns) {
    return fmt::format("no linear of the layers is called {}", fmt::join(patterns, " or "));
  };
  const std::vector<std::string> unmatched =
      recipe::unmatched_modules(r.peft.target_modules, r.model, model);
  diagnostics.require(unmatched.empty(), {"peft.target_modules"}, uncalled(unmatched), choice);
  // Recipes for many models also exclude lm_head, or modules that read images.
  if (const auto idle = recipe::unmatched_modules(r.peft.exclude_modules, r.model, model);
      !idle.empty())
    diagnostics.warn("peft.exclude_modules", uncalled(idle), choice);
  const std::vector<std::string> split = recipe::split_modules(r.peft, r.model, model);
  diagnostics.require(
      split.empty(), {"peft.exclude_modules", "peft.target_modules"},
      fmt::format("a part of {} is excluded, which has one adapter for all of its weights",
                  fmt::join(split, " and ")),
      "exclude all of it, or target the weights one by one: q_proj, v_proj, up_proj");
  const bool any_linear = std::ranges::count(r.peft.target_modules, "*") > 0;
  if (r.peft.match_all_linear || any_linear)
    diagnostics.resolved(any_linear ? "peft.target_modules" : "peft.match_all_linear",
                         "all linears of the layers; the output layer gets no adapter");
  const auto lora = recipe::adapters_of(r.peft, r.model, model);
  diagnostics.require(
      !unmatched.empty() || !split.empty() ||
          std::ranges::any_of(lora->layers, [](const auto& layer) { return !layer.empty(); }),
      {"peft.target_modules", "peft.exclude_modules"}, "no linear gets an adapter",
      "exclude fewer modules, or remove the section peft to train all weights");
  validate_expert_adapters(r, model, *lora, diagnostics);
  const Excluded rows[]{
      {r.mixed_precision.fp8 != recipe::Fp8Format::none, "mixed_precision.fp8",
       "8-bit GEMMs would quantize frozen weights, which adapters are trained against",
       "leave it out"},
      {r.optimizer.name == recipe::OptimizerName::muon, "optimizer.name",
       "Muon makes the update of each matrix orthogonal, but A and B are factors of one update",
       "use adamw"},
      {!r.optimizer.master_weights, "optimizer.master_weights",
       "adapters are small, and are trained with fp32 master weights", "leave it out"},
      {overlap.fine_grained_1f1b, "comm_overlap.fine_grained_1f1b",
       "its pairs of passes count the weight gradients of full training", "set it to false"},
      {overlap.defer_embedding_wgrad_compute, "comm_overlap.defer_embedding_wgrad_compute",
       "the output layer is frozen, and has no weight gradient to defer", "set it to false"},
  };
  for (const Excluded& row : rows)
    diagnostics.require(!row.asked, {row.field, "peft.dim"}, row.reason, row.hint);
}

}  // namespace mtrain::plan
