// The world of ranks that are processes: rendezvous, a handshake, and a transport that fits where
// they run.
#pragma once
#include <chrono>
#include <string>

#include "base/device_kind.h"
#include "comm/world.h"

namespace mtrain {

enum class ProcessBackend {
  automatic,  // nccl between GPUs; else shared memory where all ranks run on one host, else gloo
  gloo,
  nccl,
};

struct ProcessWorldOptions {
  int rank = 0, size = 1;
  int restarts = 0;  // how often a launcher has started all ranks again
  std::string master_addr = "localhost";
  uint16_t master_port = 0;  // rank 0 serves it
  std::chrono::duration<double> timeout = std::chrono::seconds(600);
  ProcessBackend backend = ProcessBackend::automatic;
  DeviceKind device = DeviceKind::cpu;  // where this rank's data is
  int device_number = 0;                // of its GPU
  Link link;
  // What every rank must have alike: the recipe's text, line by line.
  std::string recipe;
};

// Returns when all ranks have met. A restarted rank may find the server of the start before, whose
// rank 0 on another host has not ended yet: it waits for the next one. CommError names the rank
// that did not come; UserError the one that runs another recipe or another program.
World process_world(const ProcessWorldOptions& options);

}  // namespace mtrain
