// The world of ranks that are processes: they meet, compare what must be alike, and take the
// transport that fits the hosts on which they run.
#pragma once
#include <chrono>
#include <string>

#include "base/device_kind.h"
#include "comm/world.h"

namespace mtrain::comm {

enum class ProcessBackend {
  automatic,  // nccl between GPUs; on CPUs shared memory where one host runs all ranks, else gloo
  gloo,
  nccl,
};

struct ProcessWorldOptions {
  int rank = 0, size = 1;
  int restarts = 0;  // how often a launcher has started all ranks again
  std::string master_addr = "localhost";
  uint16_t master_port = 0;  // rank 0 serves the store there
  std::chrono::duration<double> timeout = std::chrono::seconds(600);
  ProcessBackend backend = ProcessBackend::automatic;
  DeviceKind device = DeviceKind::cpu;  // where this rank's data is
  int device_number = 0;                // of its GPU
  Link link;
  // The recipe's text, which must be the same on every rank, line by line.
  std::string recipe;
};

// Returns when all ranks have met. A restarted rank may find the server of the previous start,
// whose rank 0 on another host has not ended yet; it then waits for the next server. CommError
// names the rank that did not come, UserError the rank that runs another recipe or another program.
World process_world(const ProcessWorldOptions& options);

}  // namespace mtrain::comm
