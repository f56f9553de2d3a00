// Starts the ranks of a job on this node, watches them, and reports why they failed. It does for
// mtrain what torchrun does for PyTorch.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace mtrain::launch {

struct AgentOptions {
  int ranks_per_node = 1, nodes = 1, node = 0;
  std::string master_addr = "localhost";
  uint16_t master_port = 0;  // 0: any free port, for a job of one node
  int max_restarts = 0;
  std::filesystem::path log_dir;     // empty: no files
  int redirects = 0, tee = 0;        // bits: 1 stdout, 2 stderr go into files instead, or as well
  std::vector<std::string> command;  // program and arguments of every rank
  std::map<std::string, std::string> environment;  // added to the environment of every rank
};

// Runs the job to its end and returns the exit code: 0 where all ranks ended well. Otherwise it
// prints the first cause and returns 2 where that was the user's input, 1 for other causes, or 128
// + n after a second signal n. SIGINT, SIGTERM and SIGHUP are passed on, once, as SIGTERM: the
// ranks save and end. When a rank fails, the other ranks have a few seconds to end; then their
// whole process groups are killed.
int run_agent(const AgentOptions& options);

// Parses --nproc_per_node: "auto", "gpu", "cpu" or a number. Throws UserError for anything else.
int ranks_per_node(const std::string& text);

}  // namespace mtrain::launch
