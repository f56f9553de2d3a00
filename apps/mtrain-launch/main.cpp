// The program mtrain-launch: checks the recipe and passes the command line to lib/launch.
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "apps/command_line.h"
#include "apps/prepare.h"
#include "apps/train_options.h"
#include "base/cache_folder.h"
#include "base/error.h"
#include "base/file.h"
#include "base/standard_streams.h"
#include "base/strings.h"
#include "elastic_worlds.h"
#include "event_reporter.h"
#include "launch/agent.h"
#include "launch/continue_command.h"
#include "launch/host_checks.h"
#include "launch/host_gpus.h"
#include "launch/job_token.h"
#include "metrics_endpoint.h"
#include "options.h"
#include "plan/device_text.h"
#include "plan/load_recipe.h"
#include "plan/run_plan.h"
#include "recipe/load/flags.h"
#include "recipe/load/misplaced_words.h"
#include "storage/checkpoint_dir.h"
#include "storage/folder_lock.h"
#include "storage/run_record.h"

namespace fs = std::filesystem;
using namespace mtrain;

namespace {

std::string own_path() { return fs::read_symlink("/proc/self/exe"); }

// Returns the path of mtrain beside this program. If it is not there, PATH is searched for it.
std::string mtrain_program() {
  const fs::path beside = fs::path(own_path()).parent_path() / "mtrain";
  return fs::is_regular_file(beside) ? beside.string() : "mtrain";
}

bool is_mtrain(const std::string& word) { return fs::path(word).filename() == "mtrain"; }

// Whether a rank can start the word as a program: a path, or the name of one on PATH.
bool is_program(const std::string& word) {
  if (access(word.c_str(), X_OK) == 0) return true;
  const char* path = word.find('/') == std::string::npos ? std::getenv("PATH") : nullptr;
  return path && std::ranges::any_of(split(path, ':'), [&](const std::string& folder) {
           const fs::path program = fs::path(folder.empty() ? "." : folder) / word;
           return access(program.c_str(), X_OK) == 0;
         });
}

// Refuses a Python script, which torchrun would start, and other tools' commands that no program of
// this host is: `automodel finetune llm -c r.yaml`.
void refuse_other_tools(const std::string& launcher, const std::vector<std::string>& rest) {
  if (rest.empty() || is_program(rest[0])) return;
  recipe::refuse_other_commands(rest, folders_of_recipes(), launcher);
  if (!rest[0].ends_with(".py")) return;
  std::string words;
  const bool recipe = rest.size() > 1 && (rest[1].ends_with(".yaml") || rest[1].ends_with(".yml"));
  for (size_t i = recipe ? 1 : 0; i < rest.size(); ++i) words += " " + rest[i];
  throw UserError(fmt::format("{} is a Python script; a recipe or a program is expected", rest[0]),
                  recipe ? fmt::format("mtrain needs no script: write {}{}", launcher, words)
                         : fmt::format("write {} python3{}", launcher, words));
}

// Whether the words are the command line of a training, rather than a program and its arguments. A
// program with the same name as a ready recipe must be given by its path.
bool are_arguments(const std::vector<std::string>& words) {
  const std::string& first = words.front();
  if (first.ends_with(".yaml") || first.ends_with(".yml")) return true;
  return first.find('/') == std::string::npos && !fs::is_regular_file(first) &&
         recipe::begins_training(words, folders_of_recipes());
}

// Returns the command that each rank runs. `mtrain-launch ... r.yaml a.b=c` means the same as
// `mtrain-launch ... mtrain --recipe r.yaml a.b=c`.
std::vector<std::string> command_of(std::vector<std::string> rest) {
  if (!rest.empty() && rest.front() == "--") rest.erase(rest.begin());
  if (rest.empty())
    throw UserError("nothing to run", "write mtrain-launch --nproc_per_node=2 quickstart");
  const std::string& first = rest.front();
  if (first[0] == '-' || first[0] == '~' || first.find('=') != std::string::npos ||
      are_arguments(rest))
    rest.insert(rest.begin(), mtrain_program());
  if (rest.front() == "mtrain") rest.front() = mtrain_program();
  return rest;
}

// Returns the options of an mtrain command that trains; none for any other command, or for one that
// only prints help. `launcher` is this program's part of the command line, for messages.
std::optional<TrainOptions> training_of(const std::vector<std::string>& command,
                                        const std::string& launcher) {
  const std::vector<std::string> given{command.begin() + 1, command.end()};
  const auto folders = folders_of_recipes();
  if (!recipe::begins_training(given, folders)) return std::nullopt;
  recipe::refuse_misplaced(given, folders, launcher);  // train_words() does not know its options
  std::vector<std::string> words = recipe::train_words(given, folders);
  if (std::ranges::any_of(words, [](const std::string& word) {
        return word == "--help" || word == "-h" || word == "--version";
      }))
    return std::nullopt;
  if (!words.empty() && words.front() == "train") words.erase(words.begin());
  TrainOptions o = read_train_options(words);
  if (o.recipe.empty()) throw recipe::no_recipe_error(given, launcher);
  return o;
}

bool has_cuda() { return !std::string_view(MTRAIN_CUDA_VERSION).empty(); }

// Returns the GPUs of this host; none for a build without CUDA.
std::vector<std::string> usable_gpus() {
  return has_cuda() ? launch::visible_gpus() : std::vector<std::string>();
}

// Returns a line about the steps that are lost if the job ends now.
std::string unsaved_after(const plan::FolderOptions& folders) {
  try {
    if (const auto newest = storage::find_latest(folders.checkpoint_dir))
      return fmt::format("the last complete checkpoint is {}; later steps are not saved",
                         newest->path.string());
    return folders.checkpoint_dir + " has no complete checkpoint: no step is saved";
  } catch (const std::exception& e) {
    return fmt::format("{} cannot be read: {}", folders.checkpoint_dir, e.what());
  }
}

// Writes into run.json what the launcher knows better than rank 0, which may be dead.
void record_failure(const std::string& run_dir, const launch::JobFailure& f) {
  storage::JobEnd end{
      .job = f.job,
      .state = f.interrupted ? storage::RunState::interrupted
               : f.restarts  ? storage::RunState::restarting
                             : storage::RunState::failed,
      .exit_code = f.exit_code,
      .step = f.step,
      .culprit = storage::RunCulprit{
          .rank = f.culprit.value_or(-1), .host = f.culprit ? f.host : "", .message = f.message}};
  try {
    storage::record_job_end(run_dir, end);
  } catch (const std::exception& e) {
    print_warning("mtrain-launch", fmt::format("run.json does not have the end: {}", e.what()));
  }
}

// A training, as the launcher sees it.
struct LaunchedRun {
  plan::FolderOptions folders;
  std::vector<std::string> on_event;  // launch.on_event
};

// Refuses a host on which ranks cannot work: a full disk, too few descriptors. Warns of what makes
// them slow.
void check_this_host(const std::string& run_dir, const launch::AgentOptions& o) {
  launch::raise_open_files(o.ranks_per_node);
  // Ranks of several hosts compare the clocks of their hosts.
  launch::HostCheckOptions options{
      .ranks = o.ranks_per_node, .run_folder = run_dir, .rates = {}, .clock = o.nodes == 1};
  if (const auto cache = cache_folder()) options.rates = *cache / ("gemm-rate-" + host_name());
  const auto checks = launch::check_host(options);
  const auto faults = launch::faults_of(checks);
  if (!faults.empty())
    throw RunError(
        fmt::format("ranks cannot work on {}: {}", host_name(), fmt::join(faults, "; ")));
  for (const std::string& text : launch::warnings_of(checks))
    print_warning("mtrain-launch", fmt::format("{}: {}", host_name(), text));
}

// Returns the step of the newest complete checkpoint; -1: there is none. Returns nothing if it
// cannot be read now, with a warning at the first time.
std::optional<int64_t> newest_checkpoint(const plan::FolderOptions& folders, bool& warned) {
  try {
    const auto newest = storage::find_latest(folders.checkpoint_dir);
    return newest ? newest->step : -1;
  } catch (const std::exception& e) {
    if (!std::exchange(warned, true))
      print_warning("mtrain-launch",
                    fmt::format("the newest checkpoint is unknown: {}; until it can be "
                                "read, no host joins and restarts are counted on",
                                e.what()));
    return std::nullopt;
  }
}

// Sets the functions by which a job finds its number of ranks. Returns that of all hosts together.
int64_t set_elastic(const TrainOptions& training, launch::AgentOptions& o) {
  const auto worlds = std::make_shared<ElasticWorlds>(
      training, plan::machine_with(usable_gpus(), o.ranks_per_node));
  o.largest_world = [worlds](int ranks) { return worlds->largest(ranks); };
  o.nearest_worlds = [worlds](int ranks) { return worlds->nearest(ranks); };
  o.layout = [worlds](int world) { return worlds->layout(world); };
  const int most = o.ranks_per_node * o.nodes, world = worlds->largest(most);
  if (world == 0)
    throw UserError(fmt::format("--nnodes={}:{} with {} ranks each: {}", o.min_nodes, o.nodes,
                                o.ranks_per_node, worlds->nearest(most)),
                    "choose another number of hosts, or smaller sizes in `distributed`");
  return world;
}

// Checks the recipe, and reports its mistakes once, before any rank starts. Sets the environment
// variables of the ranks: launch.env, and those that must be set before a rank's process begins.
// Returns what the launcher needs of the run.
LaunchedRun check_recipe(const TrainOptions& training, launch::AgentOptions& o) {
  const int64_t world =
      o.is_elastic() ? set_elastic(training, o) : int64_t(o.ranks_per_node) * o.nodes;
  const Prepared ready =
      prepare(training, {.ranks = world,
                         .machine = plan::machine_with(usable_gpus(), o.ranks_per_node),
                         .launched = true,
                         .finds_files = o.nodes == 1});
  const Recipe& r = ready.recipe;
  const RunPlan run_plan = plan::make_plan(r, ready.world, r.model.vocab_size);
  std::map<std::string, std::string> env = r.launch.variables();
  for (const auto& [name, value] : run_plan.device.environment) env.emplace(name, value);
  for (const auto& [name, value] : env)
    if (const char* own = std::getenv(name.c_str()); own && own != value)
      print_warning("mtrain-launch",
                    fmt::format("the environment's value of {} overrides the recipe's", name));
  o.environment = std::move(env);
  o.ranks_use_gpus = o.ranks_use_gpus && plan::uses_gpus(run_plan);
  if (training.runs()) {
    check_this_host(run_plan.folders.run_dir, o);
    o.shared_token = fs::path(run_plan.folders.run_dir) / ".token";
  }
  o.replaces_stragglers = r.train.straggler == recipe::OnStraggler::replace;
  o.newest_checkpoint = [folders = run_plan.folders, warned = false]() mutable {
    return newest_checkpoint(folders, warned);
  };
  o.run_folder_held = [run_dir = run_plan.folders.run_dir] {
    return storage::is_folder_held(run_dir);
  };
  o.unsaved = [folders = run_plan.folders] { return unsaved_after(folders); };
  // One of the hosts writes it, with what its launcher knows: the one that leads.
  if (o.node == 0 || o.etcd)
    o.on_failure = [folders = run_plan.folders](const launch::JobFailure& failure) {
      record_failure(folders.run_dir, failure);
    };
  return {.folders = run_plan.folders,
          .on_event = training.runs() ? r.launch.on_event : std::vector<std::string>()};
}

// Returns the command that continues the job. Ranks print it, so it omits the values of their
// environment variables.
std::string continue_command(const launch::AgentOptions& o, int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  return launch::continue_command(recipe::without_secrets(words)) +
         (o.nodes > 1 ? "  # on each host, with its own --node_rank" : "");
}

int run(int argc, char** argv) {
  int exit_code = 0;
  auto options = read_options(argc, argv, exit_code);
  if (!options) return exit_code;
  for (const std::string& text : options->warnings) print_warning("mtrain-launch", text);
  launch::AgentOptions& o = options->agent;
  std::string launcher = "mtrain-launch";
  for (int i = 1; i + int(options->rest.size()) < argc; ++i)
    launcher += fmt::format(" {}", argv[i]);
  refuse_other_tools(launcher, options->rest);
  o.command = command_of(options->rest);
  o.uses_store = is_mtrain(o.command.front());
  if (o.uses_store && !has_cuda()) o.ranks_use_gpus = false;
  LaunchedRun launched;  // empty: the ranks do not train
  if (o.uses_store)
    if (const auto training = training_of(o.command, launcher)) {
      launched = check_recipe(*training, o);
      if (options->token_file.empty()) options->token_file = training->token_file;
      o.environment.emplace(launch::kContinueVariable, continue_command(o, argc, argv));
    }
  if (o.is_elastic() && !o.uses_store)
    throw UserError(
        "--nnodes=MIN:MAX is for trainings of mtrain: no other program can change its "
        "number of ranks",
        fmt::format("write --nnodes={}", o.nodes));
  if (o.etcd && launched.folders.run_dir.empty())
    throw UserError("--rdzv_backend=etcd is for trainings of mtrain",
                    "leave it out, and give --master_addr and --master_port");
  if (!options->token_file.empty())
    o.environment.emplace(launch::kTokenVariable,
                          launch::read_token_file(options->token_file).hex());
  std::optional<MetricsEndpoint> endpoint;
  if (options->metrics_port) {
    endpoint.emplace(
        MetricsEndpoint::Options{.host = options->metrics_host,
                                 .port = *options->metrics_port,
                                 .run_folder = launched.folders.run_dir,
                                 .checkpoint_folder = launched.folders.checkpoint_dir});
    o.observers.push_back(&*endpoint);
  }
  std::optional<EventReporter> events;
  if (!launched.on_event.empty()) {
    events.emplace(launched.on_event, launch::JobEvent{.name = o.run_id,
                                                       .run_dir = launched.folders.run_dir,
                                                       .node = o.node,
                                                       .ranks = o.ranks_per_node * o.nodes});
    o.observers.push_back(&*events);
  }
  return run_agent(o);
}

}  // namespace

int main(int argc, char** argv) {
  open_closed_standard_streams();
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    return report_error("mtrain-launch", e);
  }
}
