// The subcommands of mtrain. Each add_..._command adds a subcommand with its options to `app`, and
// sets the callback that runs it.
#pragma once
#include <cstdint>
#include <string>

#include "recipe/recipe.h"

namespace CLI {
class App;
}  // namespace CLI
namespace mtrain::launch {
struct Job;
}
namespace mtrain::plan {
struct Machine;
}

namespace mtrain {

void add_train_options(CLI::App& app, char** argv);  // `mtrain ...` and `mtrain train ...`
void add_data_command(CLI::App& app);                // `mtrain data build|show|bigram`
void add_generate_command(CLI::App& app);            // `mtrain generate`
void add_import_command(CLI::App& app);              // `mtrain import hf`
void add_export_command(CLI::App& app);              // `mtrain export hf`
void add_eval_command(CLI::App& app);                // `mtrain eval`
void add_checkpoint_command(CLI::App& app);          // `mtrain checkpoint list|show|verify|...`
void add_schedule_command(CLI::App& app);            // `mtrain schedule`
void add_plan_command(CLI::App& app);                // `mtrain plan`
void add_timeline_command(CLI::App& app);            // `mtrain timeline`
void add_watch_command(CLI::App& app);               // `mtrain watch`
void add_status_command(CLI::App& app);              // `mtrain status`
void add_compare_command(CLI::App& app);             // `mtrain compare`
void add_report_command(CLI::App& app);              // `mtrain report`
void add_parity_command(CLI::App& app);              // `mtrain parity`
void add_doctor_command(CLI::App& app);              // `mtrain doctor`
void add_calibrate_command(CLI::App& app);           // `mtrain calibrate`
void add_schema_command(CLI::App& app);              // `mtrain schema`
void add_explain_command(CLI::App& app);             // `mtrain explain`
void add_recipe_command(CLI::App& app);              // `mtrain recipe explain`
void add_completion_command(CLI::App& app);          // `mtrain completion`
std::string version_text();                          // `mtrain --version`: this build's backends

// Returns the GPUs of this host for the job's ranks on it; none in a build without CUDA.
plan::Machine machine_of(const launch::Job& job);

// Returns the size of the vocabulary for a plan. Throws UserError if neither the recipe nor a file
// of its tokenizer has it.
int64_t vocabulary_of_plan(const Recipe& recipe);

}  // namespace mtrain
