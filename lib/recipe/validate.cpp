#include "recipe/validate.h"

namespace mtrain {

void validate_recipe(const Recipe& recipe, Problems& problems, int64_t world) {
  validate_model(recipe, problems);
  validate_data(recipe, problems);
  validate_train(recipe, problems);
  validate_optimizer(recipe, problems);
  validate_precision(recipe, problems);

  const Layout layout = layout_of(recipe, world);
  validate_world(recipe, layout, problems);
  validate_strategy(recipe, layout, problems);
  validate_experts(recipe, layout, problems);
  validate_pipeline(recipe, layout, problems);
  validate_context(recipe, layout, problems);
  validate_packing(recipe, layout, problems);
  validate_cuda_graphs(recipe, layout, problems);
  validate_overlap(recipe, layout, resolve_overlap(recipe, layout), problems);
}

}  // namespace mtrain
