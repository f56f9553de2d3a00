#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/log.h"
#include "commands.h"
#include "recipe/built.h"
#include "recipe/layout.h"
#include "recipe/recipe.h"
#include "train/run.h"

namespace mtrain {

namespace {

struct Options {
  std::string recipe, trace;
  std::vector<std::string> overrides;
  bool profile = false, print_recipe = false;
};

void train(const Options& o) {
  std::vector<std::string> overrides = o.overrides;
  if (!o.trace.empty()) overrides.push_back("debug.trace=" + o.trace);
  Problems problems;
  const int64_t world = launcher_world_size();
  const Recipe recipe = load_recipe(o.recipe, overrides, problems, world);
  check_built(recipe, problems, world);
  problems.throw_if_errors();
  for (const Severity severity : {Severity::warning, Severity::resolved})
    if (const std::string text = problems.text(severity); !text.empty())
      severity == Severity::warning ? log::warn(text) : log::info(text);
  if (o.print_recipe) {
    std::fputs(print_recipe(recipe).c_str(), stdout);
    return;
  }
  run_training(recipe, {.profile = o.profile});
}

}  // namespace

void add_train_options(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* recipe = app.add_option("--recipe,-r", o->recipe, "YAML recipe");
  app.add_option("overrides", o->overrides,
                 "settings that win over the recipe: section.field=value, ~section.field resets");
  app.add_flag("--print-recipe", o->print_recipe,
               "print the resolved recipe, with the origin of each value, and stop");
  app.add_option("--trace", o->trace,
                 "write a Chrome / Perfetto trace of every launch to this file");
  app.add_flag("--profile", o->profile, "print the time of each operation at the end");
  app.callback([&app, o, recipe] {
    if (!app.get_subcommands().empty()) return;
    if (recipe->count() == 0)
      throw UserError(
          "no recipe given",
          "mtrain --recipe recipes/quickstart.yaml; `mtrain --help` lists the commands");
    train(*o);
  });
}

}  // namespace mtrain
