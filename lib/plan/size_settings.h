// The overrides that change a size of a recipe's layout, together with what the new size needs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "recipe/recipe.h"

namespace mtrain::plan {

enum class LayoutSize { tp, pp, cp, ep };

// Returns overrides such as {"distributed.tp_size=2", "distributed.sequence_parallel=true"}. The
// rules may still refuse them.
std::vector<std::string> size_settings(const Recipe& recipe, LayoutSize which, int64_t size);

// Returns the overrides that make a recipe with another strategy use this one. They reset the
// settings that it does not read.
std::vector<std::string> strategy_settings(const Recipe& recipe, recipe::Strategy strategy);
std::vector<std::string> fsdp2_settings(const Recipe& recipe);

}  // namespace mtrain::plan
