// mtrain: argv to the library. Exit codes: 0 well, 2 the user's input was wrong, 1 the run failed.
#include <cstdio>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "commands.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app("mtrain trains GPT-style language models from a YAML recipe.", "mtrain");
  app.set_version_flag("--version", mtrain::version_text, "what this build can do");
  app.footer(
      "  mtrain --recipe recipes/quickstart.yaml train.steps=100 optimizer.lr=1e-3\n"
      "  mtrain data build --input corpus.txt --output data/corpus --validation-fraction 0.05");
  app.require_subcommand(0, 1);
  mtrain::add_train_options(app);
  auto* train = app.add_subcommand("train", "train a model from a recipe (the default command)");
  mtrain::add_train_options(*train);
  mtrain::add_data_command(app);
  mtrain::add_generate_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const mtrain::UserError& e) {
    std::fprintf(stderr, "mtrain: error: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "mtrain: error: %s\n", e.what());
    return 1;
  }
}
