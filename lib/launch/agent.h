// Starts the ranks of a job on this node, watches them, and reports why they failed. It does for
// mtrain what torchrun does for PyTorch.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "launch/torchrun_options.h"

namespace mtrain::launch {

struct AgentOptions {
  int ranks_per_node = 1, nodes = 1, node = 0;
  std::string master_addr = "localhost";
  uint16_t master_port = 0;  // 0: any free port, for a job of one node
  int max_restarts = 0;
  std::filesystem::path log_dir;         // empty: no files
  Streams redirects, tee;                // what goes into files instead, or as well
  std::set<int> shown_ranks;             // of this host, whose output is shown; empty: all
  std::string role = "default", run_id;  // variables of the ranks, as torchrun sets them
  std::vector<std::string> command;      // program and arguments of every rank
  std::map<std::string, std::string> environment;  // added to the environment of every rank
  std::function<std::string()> unsaved;  // says what a job that ends now has not saved; may be null
};

// Runs the job to its end and returns the exit code: 0 where all ranks ended well. Otherwise it
// prints the first cause and returns 2 where that was the user's input, 1 for other causes, or 128
// + n where signal n ended ranks before they could save. The signals of end_signals.h are passed
// on, once, as SIGTERM: the ranks save and end. A second request kills them. When a rank fails, the
// other ranks have a few seconds to end; then all processes of the job are killed. If this process
// is killed, a watchdog kills them.
int run_agent(const AgentOptions& options);

// Returns how long to wait before all ranks start again, after so many failures in a row.
std::chrono::milliseconds restart_delay(int failures);

// Parses --nproc_per_node: "auto", "gpu", "cpu" or a number. Throws UserError for anything else.
int ranks_per_node(const std::string& text);

}  // namespace mtrain::launch
