// Computations are slower while communication runs.
#pragma once
#include <vector>

#include "predict/replay.h"

namespace mtrain::predict {

// Times in which communication runs, for computations that it slows down. Both come in the order of
// time: those of a stream, and the computations.
class Contention {
 public:
  explicit Contention(const ByStreamKind& slowdown);

  // Reports that a stream of this kind communicates.
  void runs(device::StreamKind kind, double begin, double end);
  // Returns when a computation ends that begins at `begin` and takes so long alone.
  double end_of(double begin, double seconds);

 private:
  struct Interval {
    double begin, end, slowdown;
  };
  ByStreamKind slowdown_;
  bool any_;
  std::vector<Interval> intervals_;
};

}  // namespace mtrain::predict
