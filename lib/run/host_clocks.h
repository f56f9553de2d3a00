// Reports clocks that cannot be trusted: those of hosts that differ, and one that is set while a
// run lasts. Training needs no clock, but people read its times.
#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/host_collectives.h"
#include "launch/job.h"

namespace mtrain::run {

// Compares the clocks of all hosts with that of rank 0's. All ranks call it. Returns a line for
// each host whose clock differs, on rank 0 alone.
std::vector<std::string> clock_differences(const comm::HostCollectives& control,
                                           const launch::Job& job);

// Watches this host's clock beside the steady clock, which nobody can set.
class ClockWatch {
 public:
  // Returns a line if the clock was set since the last look; otherwise an empty text.
  std::string look();
  std::string look(std::chrono::duration<double> clock, std::chrono::duration<double> steady);

 private:
  std::optional<double> ahead_s_;  // the clock's time less the steady clock's, at the last look
};

}  // namespace mtrain::run
