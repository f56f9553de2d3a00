// Starts the ranks of a job on this node, watches them, and says why they failed: what torchrun is
// to Python.
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
  uint16_t master_port = 0;  // 0: a free one, for a job of one node
  int max_restarts = 0;
  std::filesystem::path log_dir;     // empty: no files
  int redirects = 0, tee = 0;        // bits: 1 stdout, 2 stderr go into files instead, or as well
  std::vector<std::string> command;  // program and arguments of every rank
  std::map<std::string, std::string> environment;  // added to every rank's
};

// Runs the job to its end. 0: all ranks ended well. Else the first cause is printed, and the result
// is 2 where it was the user's input, 1 otherwise, 128 + n after a second signal n. SIGINT, SIGTERM
// and SIGHUP are passed on, once, as SIGTERM: ranks save and end. When a rank fails the others have
// some seconds, then their whole process groups are killed.
int run_agent(const AgentOptions& options);

// "auto", "gpu", "cpu" or a number. Throws UserError.
int ranks_per_node(const std::string& text);

}  // namespace mtrain::launch
