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

#include "apps/prepare.h"
#include "apps/sample_tokens.h"
#include "apps/train_options.h"
#include "base/error.h"
#include "base/log.h"
#include "base/pulse.h"
#include "base/terminal.h"
#include "commands.h"
#include "interchange/config.h"
#include "interchange/continued_model.h"
#include "launch/continue_command.h"
#include "launch/end_signals.h"
#include "launch/event_command.h"
#include "launch/host_gpus.h"
#include "launch/job.h"
#include "launch/job_token.h"
#include "plan/device_text.h"
#include "plan/fit_search.h"
#include "plan/load_recipe.h"
#include "plan/meeting_plan.h"
#include "plan/options/recipe_options.h"
#include "plan/rules/rules.h"
#include "plan/run_plan.h"
#include "plan/sizing_guide.h"
#include "recipe/load/flags.h"
#include "recipe/load/misplaced_words.h"
#include "run/dry_run.h"
#include "run/run.h"
#include "train/data_setup.h"

namespace mtrain {

namespace {

// Converts train.epochs to steps. Reads the index of the data.
void count_steps(Recipe& r, Diagnostics& diagnostics) {
  if (r.steps_known()) return;
  plan::resolve_epochs(r, train::samples_of_epoch(plan::dataset_options(r)), diagnostics);
  diagnostics.throw_if_errors();
}

// Does the same for a plan if the data exist. A plan needs no data; the steps then stay unknown.
// Rows are tokenized only if `tokenizes`, and their mistakes are errors.
void count_steps_if_data_exists(Recipe& r, Diagnostics& diagnostics, bool tokenizes) {
  Diagnostics files, rows;
  plan::check_files(r, files);
  check_sample_files(r, rows);
  for (const recipe::Diagnostic& absent : rows.sorted())
    diagnostics.warn(absent.field, absent.reason, absent.hint);
  if (files.has_errors() || rows.has_errors()) return;
  if (has_sample_files(r)) {
    if (!tokenizes) return;
    try {
      tokenize_samples(r, diagnostics, true);
    } catch (const UserError& e) {
      add_sample_mistake(e, diagnostics);
      diagnostics.throw_if_errors();
    }
  }
  try {
    count_steps(r, diagnostics);
  } catch (const UserError& e) {
    if (diagnostics.has_errors()) throw;
    diagnostics.warn("train.epochs", "the steps are unknown: " + e.message(), e.hint());
  }
}

struct MemoryWarning {
  bool refuses = false;  // throw UserError instead
  bool one_host = true;  // whether all ranks are on this host, whose memory CPU ranks share
};

// Warns if a plan needs more memory than there is, and names settings with which it fits.
void warn_of_memory(const plan::RecipeSource& source, const Recipe& r, const RunPlan& plan,
                    const MemoryWarning& how) {
  const plan::MemoryDemand demand = plan::memory_demand(r, plan);
  if (demand.fits() || (demand.of_host && !how.one_host)) return;
  const std::string why = "the plan does not fit: " + plan::need_text(demand, plan),
                    hint = plan::hint_text(plan::search_fit(source, r, plan));
  if (how.refuses) throw UserError(why, hint);
  log::warn(fmt::format("{}\n    hint: {}", why, hint));
}

void show_dry_run(const plan::RecipeSource& source, const Recipe& r, int64_t world) {
  const RunPlan plan = plan::make_plan(r, world, vocabulary_of_plan(r));
  const std::string report = run::dry_run_report(
      plan,
      {.width = isatty(STDOUT_FILENO) ? line_width(STDOUT_FILENO) : terminal_width(STDOUT_FILENO),
       .table_width = line_width(STDOUT_FILENO),
       .fewest_ranks = world == 0,
       .device = plan::device_text(r, plan),
       .fit = plan::fit_text(r, plan),
       .advice = plan::sizing_advice(source, r, plan),
       .disks = plan::save_hardware(r.hardware)});
  std::fputs(report.c_str(), stdout);
  std::fflush(stdout);  // before the warning on stderr
  warn_of_memory(source, r, plan, {.refuses = r.debug.strict});
}

// Sets the environment variables that the plan names, except for those that the user has set. This
// is not done in a library, since only a program may change its own environment.
void set_environment(const plan::DevicePlan& device) {
  for (const auto& [name, value] : device.environment) setenv(name.c_str(), value.c_str(), 0);
}

// Runs the recipe. The plan is made after the ranks have connected and the files have been checked,
// since it may need files. The tokenizer may decide the vocabulary, on which memory depends, and
// the data decide the steps of train.epochs.
void run(const Prepared& ready, const run::RunOptions& options) {
  const Recipe& r = ready.recipe;
  const launch::Job& job = options.job;
  const plan::MeetingPlan meeting = plan::meeting_plan(r, job.size);
  set_environment(meeting.device);
  const auto make_plan = [&](const std::function<void()>& alive) {
    Recipe counted = r;
    Diagnostics diagnostics;
    if (job.size > 1) tokenize_samples(counted, diagnostics, job.rank == 0, alive);
    count_steps(counted, diagnostics);
    if (job.rank == 0) tell(diagnostics);
    RunPlan plan =
        plan::make_plan(counted, job.size, train::vocabulary(plan::tokenizer_options(r)));
    if (job.rank == 0)
      warn_of_memory(ready.source, counted, plan, {.one_host = job.local_size == job.size});
    // The recipe that the run saves still names a tokenizer whose file is lost.
    plan.dataset.tokenizer =
        plan::tokenizer_options(interchange::without_lost_tokenizer(r, ready.saved_model));
    return plan;
  };
  run::run_training(meeting, make_plan, options);
}

// Returns the command that continues this run: the launcher's command line, or this program's if it
// runs alone.
std::string continue_command(const launch::Job& job, char** argv) {
  if (const char* command = std::getenv(launch::kContinueVariable)) return command;
  if (job.size > 1) return "";
  std::vector<std::string> words;
  for (; *argv; ++argv) words.push_back(*argv);
  return launch::continue_command(recipe::without_secrets(words));
}

// Restarts this program with the recipe's environment variables, unless all of them are already set
// by mtrain-launch or by the user. Libraries read some of them when they are loaded, before main().
// A value that the user has set is kept. If `warns`, a warning names each such variable whose value
// differs from the recipe's.
void enter_environment(const std::map<std::string, std::string>& variables, char** argv,
                       bool warns) {
  constexpr const char* kEntered = "MTRAIN_ENVIRONMENT_SET";
  bool missing = false;
  for (const auto& [name, value] : variables)
    if (const char* own = std::getenv(name.c_str());
        warns && own && own != value && !std::getenv(kEntered))
      log::warn(fmt::format("the environment's value of {} overrides launch.env's", name));
  for (const auto& [name, value] : variables) missing = missing || !std::getenv(name.c_str());
  if (!missing || std::getenv(kEntered)) return;
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 0);
  setenv(kEntered, "1", 1);
  execv("/proc/self/exe", argv);
  throw RunError(
      fmt::format("cannot restart with the variables of launch.env: {}", std::strerror(errno)));
}

// Runs the training, and tells the command of launch.on_event. mtrain-launch does that for its
// ranks.
void run_and_tell(const Prepared& ready, const run::RunOptions& options) {
  const std::vector<std::string>& command = ready.recipe.launch.on_event;
  const launch::Job& job = options.job;
  if (command.empty() || job.rank != 0 || std::getenv(launch::kLauncherPid))
    return run(ready, options);
  launch::EventCommand told(command, [](const std::string& why) { log::warn(why); });
  launch::JobEvent event{
      .event = "start", .run_dir = plan::folder_options(ready.recipe).run_dir, .ranks = job.size};
  told.send(event);
  try {
    run(ready, options);
    event.exit_code = 0;
  } catch (const std::exception& e) {
    event.event = "failure";
    event.message = e.what();
    event.exit_code = dynamic_cast<const UserError*>(&e) ? 2 : 1;
    if (!dynamic_cast<const CommError*>(&e)) event.culprit = 0;  // else a peer, which is unknown
    told.send(event);
    event.event = "end";
    event.message.clear();
    event.culprit.reset();
    told.send(event);
    throw;
  }
  event.event = "end";
  told.send(event);
}

void run_train(const TrainOptions& o, char** argv) {
  launch::Job job = launch::job_from_environment();
  job.token_file = o.token_file;
  if (!o.runs() && job.rank != 0) return;  // the output would be the same for all ranks
  // In a job of several ranks, each checks the files after all have connected: a rank that ended
  // before would leave the others waiting for it. In a job on one host, mtrain-launch has already
  // checked the files before it started the ranks.
  Prepared ready = prepare(o, {.ranks = job.size,
                               .machine = machine_of(job),
                               .launched = job.launched,
                               .restarted = job.restarts > 0,
                               .finds_files = job.size == 1});
  Recipe& recipe = ready.recipe;
  if (!o.runs())
    count_steps_if_data_exists(recipe, ready.diagnostics, o.dry_run);
  else if (job.size == 1)
    tokenize_samples(recipe, ready.diagnostics, true), count_steps(recipe, ready.diagnostics);
  // mtrain-launch has warned already, once for all ranks of the host.
  const bool warns = job.local_rank == 0 && !std::getenv(launch::kLauncherPid);
  if (o.runs()) enter_environment(recipe.launch.variables(), argv, warns);
  launch::hide_token_variable();
  if (job.rank == 0) tell(ready.diagnostics);
  if (o.print_recipe) std::fputs(print_recipe(recipe).c_str(), stdout);
  if (o.dry_run) show_dry_run(ready.source, recipe, ready.world);
  if (o.runs())
    run_and_tell(ready, {.job = job,
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

// A plan needs the tokenizer's file only for the size of its vocabulary.
int64_t vocabulary_of_plan(const Recipe& r) {
  try {
    return train::vocabulary(plan::tokenizer_options(r));
  } catch (const UserError& e) {
    throw UserError(e.message(), "set model.vocab_size: the plan then needs no tokenizer" +
                                     (e.hint().empty() ? "" : "; or " + e.hint()));
  }
}

void add_train_options(CLI::App& app, char** argv) {
  auto o = std::make_shared<TrainOptions>();
  declare_train_options(app, *o);
  app.callback([&app, o, argv] {
    if (!app.get_subcommands().empty()) return;
    if (app.count("--recipe") == 0) {
      std::vector<std::string> words;
      for (char** word = argv + 1; *word; ++word) words.emplace_back(*word);
      if (!words.empty() && words[0] == "train") words.erase(words.begin());
      throw recipe::no_recipe_error(words, "mtrain");
    }
    check_train_options(*o);
    run_train(*o, argv);
  });
}

}  // namespace mtrain
