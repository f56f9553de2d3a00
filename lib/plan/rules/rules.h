// Rules compare fields of a recipe with each other. Each function has the rules of one subject; the
// files beside this one hold them. Rules that need the number of ranks take the layout.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "plan/layout.h"
#include "plan/overlap.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

// Checks all rules below validate_sizes(), which comes before them.
void validate_rules(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                    Diagnostics& diagnostics);

// Tells of a setting that a size leaves nothing to do: a warning, or an error if the recipe sets
// debug.strict.
void warn_or_refuse(const Recipe& recipe, std::string_view field, std::string reason,
                    Diagnostics& diagnostics);
// Tells of a feature that is asked for by name and is off: an error where another setting excludes
// it, and where a size leaves it idle what warn_or_refuse() does.
void report_inactive(const Recipe& recipe, std::string_view field, OverlapRow::Off off,
                     const std::string& reason, Diagnostics& diagnostics);

// Checks that no product of sizes is too large to be counted, and no schedule too long. If it
// returns false, neither the rules below nor a plan may compute with the sizes.
bool validate_sizes(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);

void validate_model(const Recipe& recipe, Diagnostics& diagnostics);
// Checks that a list says something of every layer: it has one number for all of them, or a 0 or a
// 1 for each. `meaning` says what these two mean.
void check_layer_list(const Recipe& recipe, const char* field, const std::vector<int64_t>& list,
                      const char* meaning, Diagnostics& diagnostics);
void validate_data(const Recipe& recipe, Diagnostics& diagnostics);
// Whether the files that a run reads are there. Only runs need it: a recipe can be checked and
// planned without its data.
void check_files(const Recipe& recipe, Diagnostics& diagnostics);
// The length, recomputation, and which checkpoints there are.
void validate_train(const Recipe& recipe, Diagnostics& diagnostics);
// The lengths of the learning rate's parts against decay_steps.
void validate_schedule(const Recipe& recipe, Diagnostics& diagnostics);
void validate_optimizer(const Recipe& recipe, Diagnostics& diagnostics);
void validate_precision(const Recipe& recipe, Diagnostics& diagnostics);
// Returns the type of the weights that GEMMs read, and of activations.
recipe::ElementType weights_type(recipe::Precision precision);
// 8-bit GEMMs: the device, the scales, and the sizes that their operands can have.
void validate_float8(const Recipe& recipe, Diagnostics& diagnostics);

// The sizes against the world, batches against dp, and backends against the device.
void validate_world(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
// Returns the number of samples that must divide the global batch: a micro-batch, or AutoModel's
// local batch, on every data-parallel rank.
int64_t batch_multiple(const Recipe& recipe, const Layout& layout);
// Returns the global batches nearest to the recipe's that this number divides and that the
// pipeline's schedule can have, for hints: "24 or 48".
std::string legal_batches(const Recipe& recipe, const Layout& layout);
// Data-parallel strategies, sequence parallelism, and the sizes that tp_size must divide.
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
