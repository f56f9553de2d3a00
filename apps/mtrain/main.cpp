// The program mtrain: passes the command line to the subcommands. Exit codes: 0 success, 2 wrong
// input of the user, 1 a run that failed.
#include <unistd.h>
#include <algorithm>
#include <cstdio>

#include <CLI/CLI.hpp>

#include "base/bus_errors.h"
#include "base/error.h"
#include "commands.h"
#include "launch/error_file.h"
#include "observe/terminal.h"
#include "recipe/load/flags.h"

namespace {

// Returns the words of the command line, last first, as CLI11 parses them. Where a model is
// trained, Megatron's flags among them have become settings.
std::vector<std::string> command_line(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  const bool other_command =
      !words.empty() && words[0] != "train" &&
      std::ranges::any_of(commands, [&](const auto* c) { return c->get_name() == words[0]; });
  if (!other_command) words = mtrain::recipe::flags_to_overrides(words);
  return {words.rbegin(), words.rend()};
}

int run(int argc, char** argv) {
  CLI::App app("mtrain trains GPT-style language models from a YAML recipe.", "mtrain");
  app.set_version_flag("--version", mtrain::version_text, "what this build can do");
  app.get_formatter()->column_width(34);
  app.footer(
      "  mtrain --recipe recipes/quickstart.yaml train.steps=100 optimizer.lr=1e-3\n"
      "  mtrain --recipe recipes/llama3_70b.yaml --dry-run --world-size 1024\n"
      "  mtrain explain optimizer.lr\n"
      "  mtrain data build --input corpus.txt --output data/corpus --validation-fraction 0.05");
  app.require_subcommand(0, 1);
  mtrain::add_train_options(app, argv);
  auto* train = app.add_subcommand("train", "train a model from a recipe (the default command)");
  mtrain::add_train_options(*train, argv);
  mtrain::add_data_command(app);
  mtrain::add_generate_command(app);
  mtrain::add_import_command(app);
  mtrain::add_export_command(app);
  mtrain::add_eval_command(app);
  mtrain::add_schedule_command(app);
  mtrain::add_timeline_command(app);
  mtrain::add_schema_command(app);
  mtrain::add_explain_command(app);
  mtrain::add_completion_command(app);
  try {
    app.parse(command_line(app, argc, argv));
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return 0;
}

void print_error(const char* what) {
  const bool color = mtrain::observe::wants_color(STDERR_FILENO);
  std::fprintf(stderr, "mtrain: %serror:%s %s\n", color ? "\033[1;31m" : "", color ? "\033[0m" : "",
               what);
}

}  // namespace

int main(int argc, char** argv) {
  mtrain::name_bus_errors(mtrain::launch::error_file_of_handlers());
  try {
    return run(argc, argv);
  } catch (const mtrain::UserError& e) {
    mtrain::launch::write_error_file(e);
    print_error(e.what());
    return 2;
  } catch (const std::exception& e) {
    mtrain::launch::write_error_file(e);
    print_error(e.what());
    return 1;
  }
}
