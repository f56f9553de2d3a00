#include "predict/longer_work.h"

#include <algorithm>

namespace mtrain::predict {

double longer_beside(double begin, double seconds, std::span<const ComputingTime> computing,
                     double more) {
  double now = begin, left = seconds, longer = 0;
  auto next = std::ranges::partition_point(computing,
                                           [&](const ComputingTime& c) { return c.end <= begin; });
  for (; next != computing.end() && next->begin < now + left; ++next) {
    if (next->begin > now) {
      left -= next->begin - now;
      now = next->begin;
    }
    // How much of the work is done in a second.
    const double speed = 1 - next->share * more / (1 + more);
    const double beside = std::min(next->end - now, left / speed);
    longer += beside * (1 - speed);
    left -= beside * speed;
    now += beside;
  }
  return longer;
}

}  // namespace mtrain::predict
