// What a job would be, without running it: layout, groups, memory, pipeline, overlap.
#pragma once
#include <string>

#include "recipe/recipe.h"

namespace mtrain {

// A report of `width` columns for a valid recipe on `world` ranks; `vocab` is the true vocabulary.
// Milliseconds, whatever the world.
std::string dry_run_report(const Recipe& recipe, int64_t world, int64_t vocab, int width);

}  // namespace mtrain
