// Rules that compare fields of a recipe with each other, one function for each part of the recipe.
// Rules that need the number of ranks take the layout.
#pragma once
#include "plan/layout.h"
#include "plan/overlap.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

// Checks all rules below.
void validate_rules(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                    Diagnostics& diagnostics);

void validate_model(const Recipe& recipe, Diagnostics& diagnostics);
void validate_data(const Recipe& recipe, Diagnostics& diagnostics);
void validate_train(const Recipe& recipe, Diagnostics& diagnostics);
void validate_optimizer(const Recipe& recipe, Diagnostics& diagnostics);
void validate_precision(const Recipe& recipe, Diagnostics& diagnostics);

void validate_world(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
void validate_strategy(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
void validate_experts(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
void validate_pipeline(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
void validate_context(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
void validate_packing(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
void validate_cuda_graphs(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                          Diagnostics& diagnostics);
void validate_overlap(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                      Diagnostics& diagnostics);

}  // namespace mtrain::plan
