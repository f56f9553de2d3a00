// Measures how much communication was hidden behind compute, and how much was not.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/stream.h"

namespace mtrain::observe {

struct Communication {
  int64_t busy_ns = 0;     // time in which its stream was at work
  int64_t exposed_ns = 0;  // time in which the compute stream stood still and waited for it
  int64_t bytes = 0;       // bytes that it put on the link
  Communication& operator+=(const Communication& o);
};

// Sums communication by the kind of its stream. Every stream other than compute and copy
// communicates, and all streams of a pipeline count as StreamKind::pp. The time that a receive
// waits for a peer that has not begun to send is not counted, so that a pipeline's bubble is not
// exposed time. Only ranks that share memory know of such waits; over other backends the figures
// include them.
class Exposure : public device::TimingSink {
 public:
  using ByKind = std::map<device::StreamKind, Communication>;
  void record(const device::Timing& timing) override;
  void waited(const device::Waiting& waiting) override;
  ByKind take();  // returns the sums since the last call

 private:
  // A time in which a receive waited for its sender.
  struct Idle {
    int64_t begin_ns, end_ns;
  };
  std::mutex mutex_;
  ByKind since_;                                        // the sums since the last take()
  std::map<device::StreamId, std::vector<Idle>> idle_;  // per stream, in the order of time
};

// Returns whether step number `n` of a process (from 1) is timed for its communication. On a GPU
// the events around every launch cost the host time, so that these are the first steps, and later
// those of which a line is written.
constexpr bool samples_step(int64_t n, int64_t log_every) {
  constexpr int64_t kFirst = 10;
  return n <= kFirst || n % log_every == 0;
}

// Returns "dp_grad: 12.3 s at work, 1.1 s exposed (9 %), 4.2 GiB; tp: ...".
std::string exposure_text(const Exposure::ByKind& communication);

}  // namespace mtrain::observe
