#include "plan/rules/rules.h"

namespace mtrain::plan {

void validate_rules(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                    Diagnostics& diagnostics) {
  validate_model(recipe, diagnostics);
  validate_data(recipe, diagnostics);
  validate_train(recipe, diagnostics);
  validate_optimizer(recipe, diagnostics);
  validate_precision(recipe, diagnostics);

  validate_world(recipe, layout, diagnostics);
  validate_strategy(recipe, layout, diagnostics);
  validate_experts(recipe, layout, diagnostics);
  validate_pipeline(recipe, layout, diagnostics);
  validate_context(recipe, layout, diagnostics);
  validate_packing(recipe, layout, diagnostics);
  validate_cuda_graphs(recipe, layout, overlap, diagnostics);
  validate_overlap(recipe, layout, overlap, diagnostics);
}

}  // namespace mtrain::plan
