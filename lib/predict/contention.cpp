#include "predict/contention.h"

#include <algorithm>
#include <limits>

namespace mtrain::predict {

Contention::Contention(const ByStreamKind& slowdown)
    : slowdown_(slowdown), any_(std::ranges::any_of(slowdown, [](double s) { return s > 0; })) {}

void Contention::runs(device::StreamKind kind, double begin, double end) {
  if (any_ && slowdown_[size_t(kind)] > 0 && end > begin)
    intervals_.push_back({begin, end, slowdown_[size_t(kind)]});
}

double Contention::end_of(double begin, double seconds) {
  if (!any_) return begin + seconds;
  std::erase_if(intervals_, [&](const Interval& i) { return i.end <= begin; });
  double now = begin, left = seconds;
  while (true) {
    // Several communications slow a computation down like the one that does it most.
    double slowdown = 0, next = std::numeric_limits<double>::infinity();
    for (const Interval& i : intervals_) {
      if (i.end <= now) continue;
      if (i.begin <= now) slowdown = std::max(slowdown, i.slowdown);
      next = std::min(next, i.begin <= now ? i.end : i.begin);
    }
    const double end = now + left * (1 + slowdown);
    if (end <= next) return end;
    left -= (next - now) / (1 + slowdown);
    now = next;
  }
}

}  // namespace mtrain::predict
