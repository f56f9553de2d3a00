// The program mtrain-launch: passes the command line, whose options have torchrun's names, to
// lib/launch.
#include <unistd.h>
#include <charconv>
#include <cstdio>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "interchange/config.h"
#include "interchange/continued_model.h"
#include "interchange/export.h"
#include "launch/agent.h"
#include "launch/host_gpus.h"
#include "plan/load_recipe.h"
#include "plan/rules/rules.h"
#include "plan/rules/unsupported.h"
#include "plan/run_plan.h"
#include "recipe/load/find_recipe.h"
#include "recipe/load/flags.h"

namespace fs = std::filesystem;
using namespace mtrain;

namespace {

// Returns the path of mtrain beside this program. If it is not there, PATH is searched for it.
std::string mtrain_program() {
  const fs::path beside = fs::read_symlink("/proc/self/exe").parent_path() / "mtrain";
  return fs::is_regular_file(beside) ? beside.string() : "mtrain";
}

bool is_mtrain(const std::string& word) { return fs::path(word).filename() == "mtrain"; }

// `mtrain-launch ... --recipe r.yaml a.b=c` and `... mtrain --recipe r.yaml` mean the same.
std::vector<std::string> command_of(std::vector<std::string> rest) {
  if (!rest.empty() && rest.front() == "--") rest.erase(rest.begin());
  if (rest.empty())
    throw UserError("nothing to run",
                    "mtrain-launch --nproc_per_node=2 --recipe recipes/quickstart.yaml");
  const std::string& first = rest.front();
  const bool arguments = first[0] == '-' || first[0] == '~' || first == "train" ||
                         first.find('=') != std::string::npos;
  if (arguments) rest.insert(rest.begin(), mtrain_program());
  if (rest.front() == "mtrain") rest.front() = mtrain_program();
  return rest;
}

struct Training {
  std::string recipe;
  std::vector<std::string> overrides;
};

// Returns the recipe and overrides of an mtrain command. The recipe is empty if the command does
// not train.
Training training_of(const std::vector<std::string>& command) {
  Training t;
  const std::vector<std::string> words = recipe::flags_to_overrides(command);
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if ((word == "--recipe" || word == "-r") && i + 1 < words.size())
      t.recipe = words[++i];
    else if (word.rfind("--recipe=", 0) == 0)
      t.recipe = word.substr(9);
    else if (word == "--strict")
      t.overrides.push_back("debug.strict=true");
    else if (word == "--trace")
      ++i;
    else if (word[0] != '-' && (word[0] == '~' || word.find('=') != std::string::npos))
      t.overrides.push_back(word);
  }
  return t;
}

// Returns the GPUs of this host; none for a build without CUDA.
std::vector<std::string> usable_gpus() {
  const std::string_view cuda = MTRAIN_CUDA_VERSION;
  return cuda.empty() ? std::vector<std::string>() : launch::visible_gpus();
}

// Checks the recipe, so that its mistakes are told once, before any rank starts. Returns the
// variables of the ranks' environment: launch.env, and those that must be set before a rank's
// process begins.
std::map<std::string, std::string> check_recipe(const Training& t, int ranks_per_host, int hosts) {
  const int64_t world = int64_t(ranks_per_host) * hosts;
  Diagnostics diagnostics;
  const std::string path = recipe::find_recipe(
      t.recipe, recipe::recipe_folders(fs::read_symlink("/proc/self/exe")), diagnostics);
  diagnostics.throw_if_errors();
  const std::string saved = interchange::continued_model(path, t.overrides, false);
  const Recipe r = plan::load_recipe(path, t.overrides, diagnostics, world,
                                     plan::machine_with(usable_gpus(), ranks_per_host), saved);
  if (saved.empty()) interchange::check_folder_model(r, diagnostics);
  interchange::check_consolidated(r, diagnostics);
  plan::check_supported(r, diagnostics);
  if (hosts == 1) plan::check_files(interchange::without_lost_tokenizer(r, saved), diagnostics);
  diagnostics.throw_if_errors();
  std::map<std::string, std::string> env = r.launch.variables();
  env.merge(plan::make_plan(r, world, r.model.vocab_size).device.environment);
  for (const auto& [name, value] : env)
    if (const char* own = std::getenv(name.c_str()); own && own != value)
      std::fprintf(stderr,
                   "mtrain-launch: warning: %s of the environment wins over the recipe's value\n",
                   name.c_str());
  return env;
}

int run(int argc, char** argv) {
  CLI::App app("mtrain-launch starts the ranks of a job on this host and watches over them.",
               "mtrain-launch");
  app.prefix_command();
  app.footer(
      "  mtrain-launch --nproc_per_node=2 --recipe recipes/quickstart.yaml train.steps=100\n"
      "  mtrain-launch --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=node0 "
      "--master_port=29500 mtrain --recipe r.yaml");
  launch::AgentOptions o;
  std::string nproc = "1", endpoint, redirects = "0", tee = "0";
  bool standalone = false;
  app.add_option("--nproc_per_node,--nproc-per-node", nproc,
                 "ranks on this host: a number, auto, gpu or cpu")
      ->capture_default_str();
  app.add_option("--nnodes", o.nodes, "number of hosts")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--node_rank,--node-rank", o.node, "number of this host, from 0")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  app.add_option("--master_addr,--master-addr", o.master_addr, "host of rank 0")
      ->capture_default_str();
  app.add_option("--master_port,--master-port", o.master_port,
                 "port of rank 0 at which the ranks meet; by default a free one");
  app.add_option("--rdzv_endpoint,--rdzv-endpoint", endpoint, "master_addr:master_port in one");
  app.add_flag("--standalone", standalone, "one host, a free port (the default)");
  app.add_option(
         "--max_restarts,--max-restarts", o.max_restarts,
         "start all ranks again after a failure: from the newest checkpoint that the run has "
         "saved, or else from where the run began")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  app.add_option("--log_dir,--log-dir", o.log_dir, "folder for the ranks' output");
  app.add_option("-r,--redirects", redirects, "1: stdout into files, 2: stderr, 3: both")
      ->check(CLI::IsMember({"0", "1", "2", "3"}));
  app.add_option("-t,--tee", tee, "the same, and print it on the terminal too")
      ->check(CLI::IsMember({"0", "1", "2", "3"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (!endpoint.empty()) {
    const size_t colon = endpoint.rfind(':');
    if (colon == std::string::npos)
      throw UserError(fmt::format("--rdzv_endpoint={} names no port", endpoint), "write host:port");
    o.master_addr = endpoint.substr(0, colon);
    const char *digits = endpoint.c_str() + colon + 1, *last = endpoint.c_str() + endpoint.size();
    const auto [stop, error] = std::from_chars(digits, last, o.master_port);
    if (error != std::errc() || stop != last || o.master_port == 0)
      throw UserError(
          fmt::format("--rdzv_endpoint={} does not end with a port from 1 to 65535", endpoint),
          "write host:port");
  }
  if (standalone && o.nodes > 1)
    throw UserError("--standalone is for one host, but --nnodes is " + std::to_string(o.nodes),
                    "leave one of the two out");
  if (o.nodes > 1 && (o.master_port == 0 || o.master_addr == "localhost"))
    throw UserError("the ranks of several hosts need an address at which they meet",
                    "give --master_addr and --master_port, the same on every host");
  if (o.node >= o.nodes)
    throw UserError(fmt::format("--node_rank={} is beyond the last of {} hosts", o.node, o.nodes),
                    "hosts are numbered from 0");
  o.redirects = std::atoi(redirects.c_str());
  o.tee = std::atoi(tee.c_str());
  if ((o.redirects || o.tee) && o.log_dir.empty()) o.log_dir = "logs";
  o.ranks_per_node = launch::ranks_per_node(nproc);
  o.command = command_of(app.remaining());
  if (is_mtrain(o.command.front())) {
    const Training training = training_of(o.command);
    if (!training.recipe.empty()) o.environment = check_recipe(training, o.ranks_per_node, o.nodes);
  }
  return run_agent(o);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const UserError& e) {
    std::fprintf(stderr, "mtrain-launch: error: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "mtrain-launch: error: %s\n", e.what());
    return 1;
  }
}
