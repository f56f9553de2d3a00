// The middle of several values.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/error.h"

namespace mtrain {

// Returns the mean of the two middle ones of an even number of values. There must be one at least.
inline double median(std::vector<double> values) {
  MT_CHECK(!values.empty(), "the median of nothing");
  std::ranges::sort(values);
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace mtrain
