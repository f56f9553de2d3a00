// The world of ranks that are processes. The ranks connect, compare what must be equal, and choose
// the transport that fits the hosts on which they run.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/comm_backend.h"
#include "base/device_kind.h"
#include "base/token.h"
#include "comm/world.h"

namespace mtrain::comm {

// How a rank finds the job's token.
struct TokenSource {
  // Returns nothing while the token does not exist yet. Rank 0 always has it.
  std::function<std::optional<Token>()> find;
  // Whether a later find() may return another token: the first one may belong to an earlier job.
  bool may_change = false;
  std::string hint;            // what to do if no token is found
  std::shared_ptr<void> keep;  // lives as long as the world
};

// How long ranks wait for each other before they report it.
inline constexpr std::chrono::seconds kWaitInSilence{5};

struct ProcessWorldOptions {
  int rank = 0, size = 1;
  int local_size = 1;          // ranks on this host
  int restarts = 0;            // how often a launcher has restarted all ranks
  std::string job;             // the job's name, the same on all hosts; "": it has none
  bool served = false;         // a launcher serves the store; otherwise rank 0 does
  std::string served_at = {};  // where this host's launcher serves it; "": it does not
  std::string master_addr = "localhost";
  uint16_t master_port = 0;  // where the store is
  TokenSource token;
  std::chrono::duration<double> timeout = std::chrono::seconds(600);
  CommBackend backend = CommBackend::automatic;
  DeviceKind device = DeviceKind::cpu;  // where this rank's data is
  int device_number = 0;                // number of this rank's GPU
  Link link;
  // The recipe's text, which must be the same on every rank, line by line.
  std::string recipe;
  // Gets "waiting for 1 of 2 hosts at host0:29500 (600 s)" once a second after kWaitInSilence, from
  // another thread; may be empty.
  std::function<void(const std::string&)> waiting = {};
};

// Returns when all ranks of this start have connected. A restarted rank may find a server that is
// still at the previous start; it then waits for the next one. Throws CommError, which names the
// rank that did not arrive, or UserError, which names the rank that runs a different recipe or
// program.
World process_world(const ProcessWorldOptions& options);

}  // namespace mtrain::comm
