// The launcher's view of the pulses (base/pulse.h) of its ranks: it notices ranks that hang.
#pragma once
#include <sys/types.h>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/pulse.h"

namespace mtrain::launch {

// Ranks that hang.
struct Hang {
  std::optional<int> culprit;  // absent: no rank of this host stands out
  std::string message;         // without the program's name
  std::string hint;
  std::vector<std::string> ranks;     // a line for each rank of this host
  std::vector<std::string> launches;  // the last launches of the culprit
};

class RankPulses {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes the page of a rank. Returns its descriptor, which the rank inherits. It is -1, with
  // errno, if the system has no such memory: nothing is then known of the rank.
  int add(int rank);
  void started(int rank, pid_t pid);
  void ended(int rank);

  // Returns what hangs: a rank has made no progress for longer than it has said itself. Call it
  // several times per second: the time in which this process was stopped does not count. A rank
  // that waits for a disk or a file server does not hang until kLongestStall.
  std::optional<Hang> look(Clock::time_point now);

  // The pages of all ranks of this host, for readers in other threads.
  std::vector<std::shared_ptr<const Pulse>> pages() const;

  static constexpr std::chrono::duration<double> kLongestStall = std::chrono::minutes(10);

  // Returns the last step that was skipped as a spike since the last call, if there is one. All
  // ranks of a job skip the same steps.
  std::optional<int64_t> new_spike();
  // Returns the rank of the job that was named as too slow since the last call, if there is one. A
  // rank that has recovered may be named again. Of several that are named at once it is the first:
  // without its host the ranks begin again, and name the others.
  std::optional<int> new_straggler();

  std::vector<int> stopped() const;  // the ranks that a signal or a debugger has stopped
  PulseState state(int rank) const;
  int64_t last_step() const;  // the last step that a rank has done

 private:
  struct Rank {
    int rank = 0;
    pid_t pid = 0;
    bool alive = false;
    std::shared_ptr<Pulse> pulse;
    PulseGlance seen = {};
    std::chrono::duration<double> quiet{0};    // since its last progress
    std::chrono::duration<double> stalled{0};  // quiet times that were forgiven since then
  };
  struct Seen;
  std::vector<Seen> look_at_all() const;
  static std::vector<const Seen*> late_ones(const std::vector<Seen>& all);
  // Whether the late ranks wait for files. All ranks then get their limit once more.
  bool forgive_stall();
  Hang describe() const;

  std::vector<Rank> ranks_;
  std::optional<Clock::time_point> last_;
  int64_t straggler_ = 0;  // the step of the rank that new_straggler() has returned last
  int64_t spike_ = 0;      // the last step that new_spike() has returned
};

}  // namespace mtrain::launch
