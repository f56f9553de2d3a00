#include "base/strided_run.h"

#include <algorithm>

#include "base/error.h"

namespace mtrain {

std::vector<StridedRun> part_of(const StridedRun& run, int64_t begin, int64_t count) {
  MT_CHECK(begin >= 0 && count >= 0 && begin + count <= run.total(), "elements {} + {} of {}",
           begin, count, run.total());
  std::vector<StridedRun> parts;
  const auto add = [&](int64_t from, int64_t length, int64_t times) {
    const int64_t first = run.first + from / run.count * run.stride + from % run.count;
    parts.push_back({first, length, times, times > 1 ? run.stride : 0});
  };
  const int64_t end = begin + count;
  while (begin < end) {
    const int64_t rest = std::min(run.count - begin % run.count, end - begin);
    const bool full = rest == run.count;
    const int64_t times = full ? (end - begin) / run.count : 1;
    add(begin, rest, times);
    begin += rest * times;
  }
  return parts;
}

}  // namespace mtrain
