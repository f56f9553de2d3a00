#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/usable_cores.h"
#include "commands.h"
#include "interchange/config.h"
#include "interchange/continued_model.h"
#include "interchange/export.h"
#include "launch/continue_command.h"
#include "launch/end_signals.h"
#include "launch/host_gpus.h"
#include "launch/job.h"
#include "launch/job_token.h"
#include "plan/device_text.h"
#include "plan/load_recipe.h"
#include "plan/options/recipe_options.h"
#include "plan/rules/rules.h"
#include "plan/rules/unsupported.h"
#include "plan/run_plan.h"
#include "recipe/load/find_recipe.h"
#include "recipe/load/flags.h"
#include "recipe/load/misplaced_words.h"
#include "run/dry_run.h"
#include "run/run.h"
#include "train/data_setup.h"

namespace mtrain {

namespace {

struct Options {
  std::string recipe, trace, token_file;
  std::vector<std::string> overrides;
  bool profile = false, verbose = false, print_recipe = false, dry_run = false, strict = false;
  std::optional<int64_t> world_size;  // unless given, the world of the launcher
};

void tell(const Diagnostics& diagnostics) {
  for (const recipe::Severity severity : {recipe::Severity::warning, recipe::Severity::resolved})
    for (const recipe::Diagnostic& d : diagnostics.sorted())
      if (d.severity == severity)
        severity == recipe::Severity::warning ? log::warn(d.str()) : log::info(d.str());
}

// A plan needs the tokenizer's file only for the size of its vocabulary.
int64_t vocabulary_of_plan(const Recipe& r) {
  try {
    return train::vocabulary(plan::tokenizer_options(r));
  } catch (const UserError& e) {
    throw UserError(e.message(), "give model.vocab_size, and the plan needs no file" +
                                     (e.hint().empty() ? "" : "; or " + e.hint()));
  }
}

// Makes steps of train.epochs. Reads the index of the data.
void count_steps(Recipe& r, Diagnostics& diagnostics) {
  if (r.steps_known()) return;
  plan::resolve_epochs(r, train::samples_of_epoch(plan::dataset_options(r)), diagnostics);
  diagnostics.throw_if_errors();
}

// Does the same for a plan, which needs no data: without them the steps stay unknown.
void count_steps_if_there(Recipe& r, Diagnostics& diagnostics) {
  Diagnostics files;
  plan::check_files(r, files);
  if (files.has_errors()) return;
  try {
    count_steps(r, diagnostics);
  } catch (const UserError& e) {
    if (diagnostics.has_errors()) throw;
    diagnostics.warn("train.epochs", "the steps are unknown: " + e.message(), e.hint());
  }
}

void show_dry_run(const Recipe& r, int64_t world) {
  const RunPlan plan = plan::make_plan(r, world, vocabulary_of_plan(r));
  const std::string report = run::dry_run_report(
      plan,
      {.width = isatty(STDOUT_FILENO) ? line_width(STDOUT_FILENO) : terminal_width(STDOUT_FILENO),
       .table_width = line_width(STDOUT_FILENO),
       .fewest_ranks = world == 0,
       .device = plan::device_text(r, plan),
       .fit = plan::fit_text(r, plan)});
  std::fputs(report.c_str(), stdout);
  std::fflush(stdout);  // before what stderr says of it
  if (plan::fits(r, plan)) return;
  const std::string why = "the plan does not fit: " + plan::fit_text(r, plan);
  const std::string hint =
      "shard over more ranks, use a smaller train.micro_batch_size, or set recompute: full";
  if (r.debug.strict) throw UserError(why, hint);
  log::warn(fmt::format("{}\n    hint: {}", why, hint));
}

// Sets the environment variables that the plan names, except for those that the user has set. This
// is not done in a library, since only a program may change its own environment.
void set_environment(const plan::DevicePlan& device) {
  for (const auto& [name, value] : device.environment) setenv(name.c_str(), value.c_str(), 0);
}

// Makes the plan and runs it. The plan is made anew when the files may be read: the tokenizer may
// decide the vocabulary, on which memory depends, and the data decide the steps of train.epochs.
// Ranks need neither in order to meet. `saved` is what continued_model() returned.
void run(const Recipe& r, const std::string& saved, const run::RunOptions& options) {
  const launch::Job& job = options.job;
  const RunPlan plan = plan::make_plan(r, job.size, 0);
  set_environment(plan.device);
  const auto complete_plan = [&] {
    Recipe counted = r;
    Diagnostics diagnostics;
    count_steps(counted, diagnostics);
    if (job.rank == 0) tell(diagnostics);
    RunPlan whole =
        plan::make_plan(counted, job.size, train::vocabulary(plan::tokenizer_options(r)));
    // The recipe that the run saves goes on naming a tokenizer that is lost.
    whole.dataset.tokenizer =
        plan::tokenizer_options(interchange::without_lost_tokenizer(r, saved));
    return whole;
  };
  run::run_training(plan, complete_plan, options);
}

// Returns the command that continues this run: the launcher's, or this program's if it runs alone.
std::string continue_command(const launch::Job& job, char** argv) {
  if (const char* command = std::getenv(launch::kContinueVariable)) return command;
  if (job.size > 1) return "";
  std::vector<std::string> words;
  for (; *argv; ++argv) words.push_back(*argv);
  return launch::continue_command(recipe::without_secrets(words));
}

// Starts this program anew with the recipe's environment variables, unless all of them are set
// already: by mtrain-launch, or by the user, who wins. Libraries read some of them when they are
// loaded, before main(). `warns` says whether to name those where the user wins.
void enter_environment(const std::map<std::string, std::string>& variables, char** argv,
                       bool warns) {
  constexpr const char* kEntered = "MTRAIN_ENVIRONMENT_SET";
  bool missing = false;
  for (const auto& [name, value] : variables)
    if (const char* own = std::getenv(name.c_str());
        warns && own && own != value && !std::getenv(kEntered))
      log::warn(fmt::format("{} of the environment wins over launch.env's value", name));
  for (const auto& [name, value] : variables) missing = missing || !std::getenv(name.c_str());
  if (!missing || std::getenv(kEntered)) return;
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 0);
  setenv(kEntered, "1", 1);
  execv("/proc/self/exe", argv);
  throw RunError(fmt::format("cannot start again with launch.env: {}", std::strerror(errno)));
}

void run_train(const Options& o, char** argv) {
  const bool runs = !o.dry_run && !o.print_recipe;
  launch::Job job = launch::job_from_environment();
  job.token_file = o.token_file;
  if (!runs && job.rank != 0) return;  // what ranks would look at is the same for all
  std::vector<std::string> overrides = o.overrides;
  if (!o.trace.empty()) overrides.push_back("debug.trace=" + o.trace);
  if (o.strict) overrides.push_back("debug.strict=true");
  Diagnostics diagnostics;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string path =
      recipe::find_recipe(o.recipe, recipe::recipe_folders(program), diagnostics);
  diagnostics.throw_if_errors();
  const int64_t world = o.world_size.value_or(runs || job.launched ? job.size : 0);
  plan::Machine machine = machine_of(job);
  machine.dry_run = !runs && !job.launched;
  machine.cores = usable_cores();
  const std::string saved = interchange::continued_model(path, overrides, job.restarts > 0);
  Recipe recipe = plan::load_recipe(path, overrides, diagnostics, world, machine, saved);
  if (saved.empty()) interchange::check_folder_model(recipe, diagnostics);
  interchange::check_consolidated(recipe, diagnostics);
  if (runs || o.dry_run) plan::check_supported(recipe, diagnostics);
  if (!machine.dry_run) plan::check_machine(recipe, machine, diagnostics);
  if (runs) {
    // Ranks look for their files once they have met: one that ended now would leave the others
    // waiting for it. mtrain-launch looks before it starts the ranks of a host.
    if (job.size == 1)
      plan::check_files(interchange::without_lost_tokenizer(recipe, saved), diagnostics);
  }
  diagnostics.throw_if_errors();
  if (!runs)
    count_steps_if_there(recipe, diagnostics);
  else if (job.size == 1)
    count_steps(recipe, diagnostics);
  // mtrain-launch has warned already, once for all ranks of the host.
  const bool warns = job.local_rank == 0 && !std::getenv(launch::kLauncherPid);
  if (runs) enter_environment(recipe.launch.variables(), argv, warns);
  launch::hide_token_variable();
  if (job.rank == 0) tell(diagnostics);
  if (o.print_recipe) std::fputs(print_recipe(recipe).c_str(), stdout);
  if (o.dry_run) show_dry_run(recipe, world);
  if (runs)
    run(recipe, saved,
        {.job = job,
         .profile = o.profile,
         .verbose = o.verbose,
         .continue_command = continue_command(job, argv)});
}

}  // namespace

plan::Machine machine_of(const launch::Job& job) {
  const std::string_view cuda = MTRAIN_CUDA_VERSION;
  return plan::machine_with(cuda.empty() ? std::vector<std::string>() : launch::visible_gpus(),
                            job.local_size);
}

void add_token_option(CLI::App& command, std::string& file) {
  command
      .add_option("--token_file,--token-file", file,
                  "file of 64 hexadecimal digits, the same for all ranks, by which they know each "
                  "other (or MTRAIN_TOKEN); by default rank 0 makes one in the run folder")
      ->type_name("FILE");
}

void add_train_options(CLI::App& app, char** argv) {
  auto o = std::make_shared<Options>();
  auto* recipe = app.add_option("--recipe,-r,--config,-c", o->recipe,
                                "YAML recipe: a path, or the name of a ready one (llama3_8b); the "
                                "first word without an option is the recipe, too");
  app.add_option(
      "overrides", o->overrides,
      "settings that win over the recipe: section.field=value, ~section.field resets; "
      "Megatron's flags (--tp-comm-overlap, --context-parallel-size 4) are settings, too");
  app.add_flag("--strict", o->strict,
               "refuse what a size leaves nothing to do, instead of a warning (debug.strict)");
  app.add_flag("--print-recipe", o->print_recipe,
               "print the resolved recipe, with the origin of each value, and stop")
      ->group("Look, do not run");
  auto* dry = app.add_flag("--dry-run", o->dry_run,
                           "print device, layout, groups, memory, pipeline and overlap, and stop; "
                           "exit code 2 for what a run would refuse. Needs no data. Plans for "
                           "hardware.gpu where the recipe names it, or where the ranks are more "
                           "than this host's cores, unless train.device is cpu")
                  ->group("Look, do not run");
  auto* print = app.get_option("--print-recipe");
  app.add_option("--world-size", o->world_size,
                 "ranks to plan for, 0: the fewest that the sizes and the batch allow (the "
                 "default without a launcher)")
      ->check(whole_number_from(int64_t{0}, int64_t{1} << 24).description(""))
      ->type_name("N")
      ->group("Look, do not run");
  app.add_option("--trace", o->trace,
                 "write a Chrome / Perfetto trace of every launch and wait to this file")
      ->group("Look while it runs");
  app.add_flag("--profile", o->profile, "print the time of each operation at the end")
      ->group("Look while it runs");
  app.add_flag("--verbose", o->verbose,
               "print the communication of each kind, and its time, at the end")
      ->group("Look while it runs");
  add_token_option(app, o->token_file);
  app.callback([&app, o, recipe, dry, print, argv] {
    if (!app.get_subcommands().empty()) return;
    if (recipe->count() == 0) {
      std::vector<std::string> words;
      for (char** word = argv + 1; *word; ++word) words.emplace_back(*word);
      if (!words.empty() && words[0] == "train") words.erase(words.begin());
      throw recipe::no_recipe_error(words, "mtrain");
    }
    if (o->world_size && !*dry && !*print)
      throw UserError("--world-size plans for a world, it does not start one",
                      "add --dry-run or --print-recipe, or start ranks with a launcher");
    run_train(*o, argv);
  });
}

}  // namespace mtrain
