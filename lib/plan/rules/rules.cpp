#include "plan/rules/rules.h"

namespace mtrain {

void validate_rules(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                    Problems& problems) {
  validate_model(recipe, problems);
  validate_data(recipe, problems);
  validate_train(recipe, problems);
  validate_optimizer(recipe, problems);
  validate_precision(recipe, problems);

  validate_world(recipe, layout, problems);
  validate_strategy(recipe, layout, problems);
  validate_experts(recipe, layout, problems);
  validate_pipeline(recipe, layout, problems);
  validate_context(recipe, layout, problems);
  validate_packing(recipe, layout, problems);
  validate_cuda_graphs(recipe, layout, overlap, problems);
  validate_overlap(recipe, layout, overlap, problems);
}

}  // namespace mtrain
