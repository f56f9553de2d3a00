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

}  // namespace

void validate_adapters(const Recipe& r, const Overlap& overlap, Diagnostics& diagnostics) {
  if (!r.peft.on()) return;
  // Its linears have other names than those that are looked up below.
  if (r.model.multi_latent_attention)
    return diagnostics.require(false, {"peft.dim", "model.multi_latent_attention"},
                               "adapters beside latent attention are not supported yet",
                               "remove the section peft to train all weights");
  const spec::ModelSpec model = recipe::model_spec(r.model);
  const std::string choice =
      fmt::format("name some of {}", fmt::join(recipe::adaptable_modules(model), ", "));
  const auto uncalled = [](const std::vector<std::string>& patterns) {
    return fmt::format("no linear of the layers is called {}", fmt::join(patterns, " or "));
  };
  const std::vector<std::string> unmatched =
      recipe::unmatched_modules(r.peft.target_modules, model);
  diagnostics.require(unmatched.empty(), {"peft.target_modules"}, uncalled(unmatched), choice);
  // Recipes for many models also exclude lm_head, or modules that read images.
  if (const auto idle = recipe::unmatched_modules(r.peft.exclude_modules, model); !idle.empty())
    diagnostics.warn("peft.exclude_modules", uncalled(idle), choice);
  const std::vector<std::string> split = recipe::split_modules(r.peft, model);
  diagnostics.require(
      split.empty(), {"peft.exclude_modules", "peft.target_modules"},
      fmt::format("a part of {} is excluded, which has one adapter for all of its weights",
                  fmt::join(split, " and ")),
      "exclude all of it, or target the weights one by one: q_proj, v_proj, up_proj");
  const bool any_linear = std::ranges::count(r.peft.target_modules, "*") > 0;
  if (r.peft.match_all_linear || any_linear)
    diagnostics.resolved(any_linear ? "peft.target_modules" : "peft.match_all_linear",
                         "all linears of the layers; the output layer gets no adapter");
  const auto lora = recipe::adapters_of(r.peft, model);
  diagnostics.require(
      !unmatched.empty() || !split.empty() ||
          std::ranges::any_of(lora->layers, [](const auto& layer) { return !layer.empty(); }),
      {"peft.target_modules", "peft.exclude_modules"}, "no linear gets an adapter",
      "exclude fewer modules, or remove the section peft to train all weights");
  const auto& d = r.distributed;
  const Excluded rows[]{
      {r.model.moe.num_experts > 0, "model.moe.num_experts",
       "adapters beside experts are not supported yet", "train a dense model"},
      {r.mixed_precision.fp8 != recipe::Fp8Format::none, "mixed_precision.fp8",
       "8-bit GEMMs would quantize frozen weights, which adapters are trained against",
       "leave it out"},
      {r.optimizer.name == recipe::OptimizerName::muon, "optimizer.name",
       "Muon makes the update of each matrix orthogonal, but A and B are factors of one update",
       "use adamw"},
      {!r.optimizer.master_weights, "optimizer.master_weights",
       "adapters are small, and are trained with fp32 master weights", "leave it out"},
      {r.peft.dropout > 0 && d.tp_size > 1, "peft.dropout",
       "tensor parallelism divides the inputs that dropout drops from", "set it to 0"},
      {overlap.fine_grained_1f1b, "comm_overlap.fine_grained_1f1b",
       "its pairs of passes count the weight gradients of full training", "set it to false"},
      {overlap.defer_embedding_wgrad_compute, "comm_overlap.defer_embedding_wgrad_compute",
       "the output layer is frozen, and has no weight gradient to defer", "set it to false"},
  };
  for (const Excluded& row : rows)
    diagnostics.require(!row.asked, {row.field, "peft.dim"}, row.reason, row.hint);
}

}  // namespace mtrain::plan
