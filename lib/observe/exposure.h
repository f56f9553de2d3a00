// Measures how much communication was hidden behind compute, and how much was not.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "device/stream.h"

namespace mtrain::observe {

struct Communication {
  int64_t busy_ns = 0;     // time in which its stream was busy
  int64_t exposed_ns = 0;  // time in which the compute stream was idle and waited for that work
  // Time in which the compute stream was idle while the communication itself waited for another
  // rank to begin its part. Absent: unknown; busy_ns and exposed_ns then include such waits.
  std::optional<int64_t> idle_ns = 0;
  int64_t bytes = 0;  // bytes sent over the link
  // The parts of busy_ns and exposed_ns whose communication, or whose wait of the compute stream,
  // was enqueued under a Device::PairScope.
  int64_t paired_busy_ns = 0, paired_exposed_ns = 0;
  bool paired() const { return paired_busy_ns > 0 || paired_exposed_ns > 0; }
  Communication& operator+=(const Communication& o);
};

// Sums communication by the kind of its stream. Every stream other than compute and copy
// communicates, and all streams of a pipeline count as StreamKind::pp. A wait of compute is idle,
// and not exposed, until the last rank of a collective, or the sender of a message, is ready. The
// longer computation of another rank, or a pipeline's bubble, is not communication. Only ranks that
// share memory know these times.
class Exposure : public device::TimingSink {
 public:
  using ByKind = std::map<device::StreamKind, Communication>;
  void record(const device::Timing& timing) override;
  void waited(const device::Waiting& waiting) override;
  ByKind take();  // returns the sums since the last call
  // Returns how long the compute stream was idle since the last call without waiting for another
  // stream, mostly because the host had enqueued nothing. Only gaps between two computations or
  // waits count. They include copies between host and device, and the overhead of launches.
  int64_t take_starved_ns();
  // Returns how long the compute stream has computed since the last call. Waits do not count.
  int64_t take_compute_ns();

 private:
  // A time in which a communication waited for another rank.
  struct Idle {
    int64_t begin_ns, end_ns;
  };
  // The idle times of a stream, for the waits for it.
  struct StreamIdle {
    std::deque<Idle> times;  // in the order of time
    bool known = true;       // false: the stream has waited for unknown times
  };
  // These are called with the mutex held.
  void compute_was_occupied(int64_t begin_ns, int64_t end_ns);
  // Returns how much of the wait is idle; absent: unknown.
  std::optional<int64_t> idle_in(const device::Waiting& waiting);

  std::mutex mutex_;
  ByKind since_;  // the sums since the last take()
  std::map<device::StreamId, StreamIdle> idle_;
  std::optional<int64_t> compute_end_ns_;  // of its last computation or wait
  int64_t starved_ns_ = 0, compute_ns_ = 0;
};

// Returns whether step number `n` of a process (from 1) is timed for its communication. On a GPU
// the events around every launch cost host time, and neighbouring launches cannot overlap.
// Therefore every `time_every`-th step is timed; without it the first steps, and later those that
// are logged.
constexpr bool samples_step(int64_t n, int64_t log_every, std::optional<int64_t> time_every) {
  constexpr int64_t kFirst = 10;
  if (time_every) return n % *time_every == 0;
  return n <= kFirst || n % log_every == 0;
}

// Returns "communication: 7 % of a step exposed (dp 5, tp 2), 3 % idle (pp), 10 steps timed": the
// shares of `steps_ns`, the time of all timed steps, and the parallelisms that cause them.
std::string exposure_summary(const Exposure::ByKind& communication, int64_t steps_ns,
                             int64_t steps);

// Returns "dp_grad: 12.3 s at work, 1.1 s exposed (9 %), 0.2 s idle, 4.2 GiB; tp: ...". If a kind
// communicated in pairs, ", 10 s of it in pairs" follows the first two times.
std::string exposure_text(const Exposure::ByKind& communication);

}  // namespace mtrain::observe
