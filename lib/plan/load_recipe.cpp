#include "plan/load_recipe.h"

#include "plan/layout.h"
#include "plan/overlap.h"
#include "plan/rules/rules.h"

namespace mtrain::plan {

Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides,
                   Diagnostics& diagnostics, int64_t world) {
  const auto recipe = read_recipe(path, overrides, diagnostics);
  if (!recipe) return {};
  validate_recipe(*recipe, diagnostics, world);
  return *recipe;
}

Recipe load_recipe_text(const std::string& text, const std::string& name,
                        const std::vector<std::string>& overrides, Diagnostics& diagnostics,
                        int64_t world) {
  const auto recipe = read_recipe_text(text, name, overrides, diagnostics);
  if (!recipe) return {};
  validate_recipe(*recipe, diagnostics, world);
  return *recipe;
}

void validate_recipe(const Recipe& recipe, Diagnostics& diagnostics, int64_t world) {
  const Layout layout = layout_of(recipe, world);
  validate_rules(recipe, layout, resolve_overlap(recipe, layout), diagnostics);
}

}  // namespace mtrain::plan
