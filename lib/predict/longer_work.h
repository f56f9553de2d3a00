// Communication works more slowly beside computations of its rank, with which it shares a core.
#pragma once
#include <span>

namespace mtrain::predict {

// A time of a rank, which computes for `share` of it and waits for the rest, evenly spread.
struct ComputingTime {
  double begin, end;
  double share = 1;
};

// Returns by how much longer work takes that begins at `begin` and takes `seconds` alone. Beside
// computations it takes 1 + `more` times as long, so less of it is done before they end.
// `computing` is in the order of time.
double longer_beside(double begin, double seconds, std::span<const ComputingTime> computing,
                     double more);

}  // namespace mtrain::predict
