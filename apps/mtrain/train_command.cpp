#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/log.h"
#include "commands.h"
#include "launch/job.h"
#include "observe/terminal.h"
#include "plan/load_recipe.h"
#include "plan/options/recipe_options.h"
#include "plan/rules/unsupported.h"
#include "plan/run_plan.h"
#include "run/dry_run.h"
#include "run/run.h"
#include "train/data_setup.h"

namespace mtrain {

namespace {

struct Options {
  std::string recipe, trace;
  std::vector<std::string> overrides;
  bool profile = false, print_recipe = false, dry_run = false;
  int64_t world_size = 0;  // 0: the world of the launcher
};

void tell(const Diagnostics& diagnostics) {
  for (const recipe::Severity severity : {recipe::Severity::warning, recipe::Severity::resolved})
    if (const std::string text = diagnostics.text(severity); !text.empty())
      severity == recipe::Severity::warning ? log::warn(text) : log::info(text);
}

void show_dry_run(const Recipe& r, int64_t world) {
  const int64_t vocab =
      r.model.vocab_size > 0 ? r.model.vocab_size : train::vocabulary(plan::tokenizer_options(r));
  const RunPlan plan = plan::make_plan(r, world, vocab);
  std::fputs(run::dry_run_report(plan, observe::terminal_width(STDOUT_FILENO)).c_str(), stdout);
  Diagnostics missing;
  plan::check_supported(r, missing);
  if (const std::string text = missing.text(recipe::Severity::error); !text.empty())
    std::printf("\nthis build cannot run it yet:\n%s\n", text.c_str());
}

// Sets the environment variables that the plan names, except for those that the user has set. This
// is not done in a library, since only a program may change its own environment.
void set_environment(const plan::DevicePlan& device) {
  for (const auto& [name, value] : device.environment) setenv(name.c_str(), value.c_str(), 0);
}

// Makes the plan and runs it. The plan is made anew when the vocabulary is known, which the
// tokenizer may decide; memory depends on it, but nothing that ranks need in order to meet.
void run(const Recipe& r, const launch::Job& job, bool profile) {
  const RunPlan plan = plan::make_plan(r, job.size, 0);
  set_environment(plan.device);
  const auto with_vocabulary = [&] {
    return plan::make_plan(r, job.size, train::vocabulary(plan::tokenizer_options(r)));
  };
  run::run_training(plan, with_vocabulary, {.job = job, .profile = profile});
}

void run_train(const Options& o) {
  std::vector<std::string> overrides = o.overrides;
  if (!o.trace.empty()) overrides.push_back("debug.trace=" + o.trace);
  Diagnostics diagnostics;
  const launch::Job job = launch::job_from_environment();
  const int64_t world = o.world_size ? o.world_size : job.size;
  const Recipe recipe = plan::load_recipe(o.recipe, overrides, diagnostics, world);
  const bool runs = !o.dry_run && !o.print_recipe;
  if (runs) plan::check_supported(recipe, diagnostics);
  diagnostics.throw_if_errors();
  if (job.rank == 0) tell(diagnostics);
  if (o.print_recipe) std::fputs(print_recipe(recipe).c_str(), stdout);
  if (o.dry_run) show_dry_run(recipe, world);
  if (runs) run(recipe, job, o.profile);
}

}  // namespace

void add_train_options(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* recipe = app.add_option("--recipe,-r", o->recipe, "YAML recipe");
  app.add_option("overrides", o->overrides,
                 "settings that win over the recipe: section.field=value, ~section.field resets");
  app.add_flag("--print-recipe", o->print_recipe,
               "print the resolved recipe, with the origin of each value, and stop")
      ->group("Look, do not run");
  auto* dry = app.add_flag("--dry-run", o->dry_run,
                           "print layout, groups, memory, pipeline and overlap, and stop")
                  ->group("Look, do not run");
  auto* print = app.get_option("--print-recipe");
  app.add_option("--world-size", o->world_size, "ranks to plan for; by default the launcher's")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24).description(""))
      ->type_name("N")
      ->group("Look, do not run");
  app.add_option("--trace", o->trace,
                 "write a Chrome / Perfetto trace of every launch to this file")
      ->group("Look while it runs");
  app.add_flag("--profile", o->profile, "print the time of each operation at the end")
      ->group("Look while it runs");
  app.callback([&app, o, recipe, dry, print] {
    if (!app.get_subcommands().empty()) return;
    if (recipe->count() == 0)
      throw UserError(
          "no recipe given",
          "mtrain --recipe recipes/quickstart.yaml; `mtrain --help` lists the commands");
    if (o->world_size && !*dry && !*print)
      throw UserError("--world-size plans for a world, it does not start one",
                      "add --dry-run or --print-recipe, or start ranks with a launcher");
    run_train(*o);
  });
}

}  // namespace mtrain
