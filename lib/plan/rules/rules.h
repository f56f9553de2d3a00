// Rules compare fields of a recipe with each other. Each function has the rules of one subject, in
// a file of this folder. Rules that need the number of ranks take the layout.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "plan/layout.h"
#include "plan/overlap.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

// Checks all rules that are declared after validate_sizes(), which comes before them.
void validate_rules(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                    Diagnostics& diagnostics);
// Checks those of them that come last: all that read the layout.
void validate_layout_rules(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                           Diagnostics& diagnostics);

// Reports a rule that the caller has found broken, as Diagnostics::require() does. Searches check
// many layouts, so the texts of their rules are written only for those that break one.
void refuse(std::initializer_list<std::string_view> fields, std::string reason, std::string hint,
            Diagnostics& diagnostics);
// Reports a setting that has no effect at this size: a warning, or an error if the recipe sets
// debug.strict.
void warn_or_refuse(const Recipe& recipe, std::string_view field, std::string reason,
                    Diagnostics& diagnostics);
// Reports a feature that the recipe asks for by name and that is off. This is an error if another
// setting excludes it. If a size leaves it idle, calls warn_or_refuse().
void report_inactive(const Recipe& recipe, std::string_view field, OverlapRow::Off off,
                     const std::string& reason, Diagnostics& diagnostics);

// Checks that no product of sizes is too large to be counted, and no schedule too long. If it
// returns false, neither the rules below nor a plan may compute with the sizes.
bool validate_sizes(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);

void validate_model(const Recipe& recipe, Diagnostics& diagnostics);
// Checks that a list covers every layer: it has one number for all layers, or a 0 or a 1 for each.
// `meaning` says what these two mean.
void check_layer_list(const Recipe& recipe, const char* field, const std::vector<int64_t>& list,
                      const char* meaning, Diagnostics& diagnostics);
void validate_data(const Recipe& recipe, Diagnostics& diagnostics);
// Checks that the files exist that a run reads. Only runs call it: a recipe can be checked and
// planned without its data.
void check_files(const Recipe& recipe, Diagnostics& diagnostics);
// Checks recomputation. Searches rely on it that no other rule reads the section `recompute`,
// except through the overlap that was resolved.
void validate_train(const Recipe& recipe, Diagnostics& diagnostics);
// Checks which checkpoints are saved and loaded, and that the run's folders are paths.
void validate_checkpoints(const Recipe& recipe, Diagnostics& diagnostics);
// Checks the lengths of the learning rate's phases against decay_steps.
void validate_schedule(const Recipe& recipe, Diagnostics& diagnostics);
void validate_optimizer(const Recipe& recipe, Diagnostics& diagnostics);
// Checks which linears get adapters, and refuses what cannot go together with them.
void validate_adapters(const Recipe& recipe, const Overlap& overlap, Diagnostics& diagnostics);
void validate_precision(const Recipe& recipe, Diagnostics& diagnostics);
// Returns the type of the weights that GEMMs read, and of activations.
recipe::ElementType weights_type(recipe::Precision precision);
// Checks 8-bit GEMMs: the device, the scales, and the sizes that their operands can have.
void validate_float8(const Recipe& recipe, Diagnostics& diagnostics);

// Checks the sizes against the world, batches against dp, and backends against the device.
void validate_world(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
// Returns the number of samples that must divide the global batch: a micro-batch, or AutoModel's
// local batch, on every data-parallel rank.
int64_t batch_multiple(const Recipe& recipe, const Layout& layout);
// Returns the global batches nearest to the recipe's that this number divides and that the
// pipeline's schedule can have, for hints: "24 or 48".
std::string legal_batches(const Recipe& recipe, const Layout& layout);
// Checks data-parallel strategies, sequence parallelism, and the sizes that tp_size must divide.
void validate_strategy(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
void validate_experts(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
void validate_pipeline(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
void validate_context(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
void validate_packing(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);
void validate_cuda_graphs(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                          Diagnostics& diagnostics);
void validate_overlap(const Recipe& recipe, const Layout& layout, const Overlap& overlap,
                      Diagnostics& diagnostics);
// Checks how ranks are started, and the variables that they get.
void validate_launch(const Recipe& recipe, const Overlap& overlap, Diagnostics& diagnostics);
// Checks that the faults on purpose can be.
void validate_debug(const Recipe& recipe, const Layout& layout, Diagnostics& diagnostics);

}  // namespace mtrain::plan
