// The program mtrain: passes the command line to the subcommands. Exit codes: 0 for success, 2 for
// an error in the user's input, 1 for a failed run.
#include <algorithm>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "apps/prepare.h"
#include "base/bus_errors.h"
#include "base/crashes.h"
#include "base/error.h"
#include "base/standard_streams.h"
#include "base/strings.h"
#include "commands.h"
#include "launch/error_file.h"
#include "recipe/load/flags.h"

namespace {

// Refuses a first word that is neither a command, an option, a recipe nor a setting.
void refuse_unknown(const std::vector<std::string>& commands, const std::string& word) {
  if (word.empty() || word[0] == '-' || word[0] == '~' || word.find('=') != std::string::npos ||
      word == "train")
    return;
  const std::string meant = mtrain::nearest(word, commands);
  std::string list;
  for (const std::string& name : commands) list += (list.empty() ? "" : ", ") + name;
  throw mtrain::UserError(
      fmt::format("`{}` is neither a command nor a recipe", word),
      meant.empty() ? fmt::format("the commands are {}; a recipe is a YAML file, or the name of a "
                                  "ready one (mtrain llama3_8b)",
                                  list)
                    : fmt::format("did you mean `mtrain {}`?", meant));
}

// Returns the words of the command line, last first, as CLI11 requires. For a training, Megatron's
// flags are replaced by settings.
std::vector<std::string> command_line(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc), commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string& name = commands.emplace_back(command->get_name());
    MT_CHECK(mtrain::recipe::is_command(name) == (name != "train"), "command {}", name);
  }
  if (words.empty() || !mtrain::recipe::is_command(words[0])) {
    words = mtrain::recipe::train_words(words, mtrain::folders_of_recipes());
    if (!words.empty()) refuse_unknown(commands, words[0]);
  } else {
    mtrain::spell_options_as_known(app, words);
  }
  return {words.rbegin(), words.rend()};
}

int run_program(int argc, char** argv) {
  CLI::App app("mtrain trains GPT-style language models from a YAML recipe.", "mtrain");
  app.set_version_flag("--version", mtrain::version_text,
                       "print the version and what this build supports");
  mtrain::fit_help(app);
  mtrain::set_examples(
      app, {"mtrain recipes/quickstart.yaml train.steps=100 optimizer.lr=1e-3",
            "mtrain llama3_70b --dry-run --world-size 1024", "mtrain explain learning_rate",
            "mtrain data build --input corpus.txt --output data/corpus --validation-fraction 0.05 "
            "--validation-split tail"});
  app.require_subcommand(0, 1);
  mtrain::add_train_options(app, argv);
  auto* train = app.add_subcommand("train", "train a model from a recipe (the default command)");
  mtrain::add_train_options(*train, argv);
  mtrain::set_examples(
      *train, {"mtrain train recipes/quickstart.yaml train.run_dir=runs/first train.steps=20",
               "mtrain train recipes/quickstart.yaml train.run_dir=runs/first "
               "checkpoint.load=latest train.steps=30",
               "mtrain train llama3_8b --dry-run --world-size 64",
               "mtrain train llama3_8b --print-recipe --tensor-model-parallel-size 4"});
  mtrain::add_data_command(app);
  mtrain::add_generate_command(app);
  mtrain::add_import_command(app);
  mtrain::add_export_command(app);
  mtrain::add_eval_command(app);
  mtrain::add_checkpoint_command(app);
  mtrain::add_plan_command(app);
  mtrain::add_schedule_command(app);
  mtrain::add_timeline_command(app);
  mtrain::add_watch_command(app);
  mtrain::add_status_command(app);
  mtrain::add_compare_command(app);
  mtrain::add_report_command(app);
  mtrain::add_parity_command(app);
  mtrain::add_doctor_command(app);
  mtrain::add_calibrate_command(app);
  mtrain::add_schema_command(app);
  mtrain::add_explain_command(app);
  mtrain::add_recipe_command(app);
  mtrain::add_completion_command(app);
  try {
    app.parse(command_line(app, argc, argv));
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    throw mtrain::command_line_error(app, e);
  }
  return 0;
}

int report(const std::exception& error) {
  mtrain::launch::write_error_file(error);
  return mtrain::report_error("mtrain", error);
}

}  // namespace

int main(int argc, char** argv) {
  mtrain::open_closed_standard_streams();
  const auto write = mtrain::launch::error_file_of_handlers();
  mtrain::report_crashes(write);
  mtrain::name_bus_errors(write);
  try {
    return run_program(argc, argv);
  } catch (const std::exception& e) {
    return report(e);
  }
}
