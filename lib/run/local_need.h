// The memory and the disk that local copies take on each host.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace mtrain::run {

// What a rank adds to the need of its host, in bytes.
struct RankNeed {
  std::string host;
  int64_t part = 0;        // what it writes of a step
  int64_t staged = 0;      // the copy in memory from which it writes
  bool in_memory = false;  // the folder is memory of the host
  int64_t memory = -1;     // what its host has for local copies; -1: unknown
  int64_t room = -1;       // what the folder's file system has for them; -1: unknown
};

struct LocalNeed {
  std::string host;
  int64_t parts = 0;   // in the folder: of the host's ranks, and of those it has replicas of
  int64_t staged = 0;  // in memory besides
  bool in_memory = false;
  int64_t memory = -1, room = -1;  // the least that a rank reports

  int64_t bytes() const { return parts + staged; }
  int64_t bytes_of_memory() const { return staged + (in_memory ? parts : 0); }
};

// Returns the need of each host, in the order of their first ranks. `ranks` has all ranks, and the
// part of each one goes to `replicas` other hosts.
std::vector<LocalNeed> needs_of_hosts(const std::vector<RankNeed>& ranks, int replicas);

// Returns why copies of this size are not made; empty if they are. `most` is
// checkpoint.local.max_gib in bytes; 0: no limit.
std::string refusal(const std::vector<LocalNeed>& hosts, int64_t most);

}  // namespace mtrain::run
