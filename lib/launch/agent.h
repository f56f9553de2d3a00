// Starts the ranks of a job on this node, watches them, and reports why they failed, as torchrun
// does for PyTorch.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/etcd_options.h"
#include "launch/numa_binding.h"
#include "launch/torchrun_options.h"

namespace mtrain::launch {

// Why a start of the job has failed, or was ended by a signal.
struct JobFailure {
  std::string job;   // Job::id of the ranks on the host that leads
  std::string host;  // of the culprit
  int exit_code = 1;
  bool interrupted = false;
  bool restarts = false;       // the launcher starts the ranks again
  int64_t step = 0;            // the last step that a rank of this host has done
  std::optional<int> culprit;  // the rank that is the cause, if one is known
  std::string message;
};

class JobObserver;

struct AgentOptions {
  int ranks_per_node = 1, nodes = 1, node = 0;
  int min_nodes = 0;  // fewer hosts than `nodes` also suffice if there are as many; 0: `nodes`
  std::string master_addr = "localhost";
  uint16_t master_port = 0;  // 0: any free port, for a job of one node
  int max_restarts = 0;
  std::filesystem::path log_dir;         // empty: no files
  Streams redirects, tee;                // streams written to files instead, or in addition
  std::set<int> shown_ranks;             // ranks of this host whose output is shown; empty: all
  std::string role = "default", run_id;  // variables of the ranks, as torchrun sets them
  std::vector<std::string> command;      // program and arguments of every rank
  std::map<std::string, std::string> environment;  // added to the environment of every rank
  NumaBinding numa_binding = NumaBinding::none;
  bool ranks_use_gpus = true;  // false: none of them does, whatever GPUs the host has
  // Whether the ranks meet at mtrain's store, as mtrain does. The launcher of host 0 then serves
  // it, if it has the job's token. Ranks of other programs may serve something at the job's port.
  bool uses_store = false;
  std::filesystem::path shared_token;  // file by which hosts share a token; empty: they cannot
  bool is_elastic() const { return min_nodes > 0 && min_nodes < nodes; }
  // Whether the launchers of all hosts begin and end the ranks together, through the store.
  bool acts_together() const { return uses_store && nodes > 1 && !shared_token.empty(); }
  // Set: the launchers elect the one that leads, through etcd. Otherwise host 0 leads.
  std::optional<EtcdOptions> etcd;
  bool elects() const { return etcd && acts_together(); }
  // Whether a host with a rank that is too slow is replaced by spare ranks.
  bool replaces_stragglers = false;
  // For a job that acts together, as in LeaderOptions (launch/round_leader.h).
  std::function<int(int ranks)> largest_world;
  std::function<std::string(int world)> layout, nearest_worlds;
  std::function<std::optional<int64_t>()> newest_checkpoint;
  std::function<bool()> run_folder_held;  // whether a run uses the run folder now; may be null
  std::chrono::milliseconds rendezvous_timeout{600000};  // how long hosts wait for others
  std::function<std::string()> unsaved;  // describes what would be lost now; may be null
  // Called once for each start that has failed, and again if the announced restart is not made. May
  // be null.
  std::function<void(const JobFailure&)> on_failure;
  std::vector<JobObserver*> observers;
};

// Runs the job to its end and returns the exit code: 0 if all ranks succeeded. Otherwise it prints
// the first cause. It returns 2 if that was the user's input, 128 + n if signal n ended ranks
// before they could save, and 1 for other causes. The signals of end_signals.h are forwarded, once,
// as SIGTERM: the ranks save and end. A second request kills them. When a rank fails, the other
// ranks have a few seconds to end; then all processes of the job are killed. If this process is
// killed, a watchdog kills them.
int run_agent(const AgentOptions& options);

// Returns CUDA_VISIBLE_DEVICES as the ranks have it; nothing: it is not set. "" if they use no GPU.
std::optional<std::string> visible_devices_of_ranks(const AgentOptions& options);

// Returns how long to wait before all ranks are restarted, after `failures` failures in a row. The
// first restart does not wait.
std::chrono::milliseconds restart_delay(int failures);

// Parses --nproc_per_node: "auto", "gpu", "cpu" or a number. Throws UserError for anything else.
int ranks_per_node(const std::string& text);

}  // namespace mtrain::launch
