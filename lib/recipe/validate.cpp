#include "recipe/validate.h"

namespace mtrain {

void validate_recipe(const Recipe& recipe, Problems& problems, int64_t world) {
  (void)world;
  validate_model(recipe, problems);
  validate_data(recipe, problems);
  validate_train(recipe, problems);
  validate_optimizer(recipe, problems);
}

}  // namespace mtrain
