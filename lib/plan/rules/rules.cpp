#include "plan/rules/rules.h"

#include <utility>

#include <fmt/core.h>

namespace mtrain::plan {

void validate_rules(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                    Diagnostics& diagnostics) {
  validate_model(recipe, diagnostics);
  validate_data(recipe, diagnostics);
  validate_train(recipe, diagnostics);
  validate_checkpoints(recipe, diagnostics);
  validate_schedule(recipe, diagnostics);
  validate_optimizer(recipe, diagnostics);
  validate_precision(recipe, diagnostics);
  validate_layout_rules(recipe, layout, overlap, diagnostics);
}

void validate_layout_rules(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                           Diagnostics& diagnostics) {
  validate_adapters(recipe, overlap, diagnostics);
  validate_float8(recipe, diagnostics);

  validate_world(recipe, layout, diagnostics);
  validate_strategy(recipe, layout, diagnostics);
  validate_experts(recipe, layout, diagnostics);
  validate_pipeline(recipe, layout, diagnostics);
  validate_context(recipe, layout, diagnostics);
  validate_packing(recipe, layout, diagnostics);
  validate_cuda_graphs(recipe, layout, overlap, diagnostics);
  validate_overlap(recipe, layout, overlap, diagnostics);
  validate_launch(recipe, overlap, diagnostics);
  validate_debug(recipe, layout, diagnostics);
}

void refuse(std::initializer_list<std::string_view> fields, std::string reason, std::string hint,
            Diagnostics& diagnostics) {
  diagnostics.require(false, fields, std::move(reason), std::move(hint));
}

void warn_or_refuse(const Recipe& recipe, std::string_view field, std::string reason,
                    Diagnostics& diagnostics) {
  if (recipe.debug.strict)
    refuse({field}, std::move(reason),
           "set it to false or auto, or leave it out; without --strict this is a warning",
           diagnostics);
  else
    diagnostics.warn(field, std::move(reason));
}

void report_inactive(const Recipe& recipe, std::string_view field, OverlapRow::Off off,
                     const std::string& reason, Diagnostics& diagnostics) {
  if (off == OverlapRow::Off::idle)
    warn_or_refuse(recipe, field, fmt::format("is disabled: {}", reason), diagnostics);
  if (off == OverlapRow::Off::contradicts)
    refuse({field}, fmt::format("cannot be active: {}", reason),
           "set it to false or auto, or change the setting that it contradicts", diagnostics);
}

}  // namespace mtrain::plan
