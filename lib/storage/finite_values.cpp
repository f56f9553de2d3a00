#include "storage/finite_values.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <thread>

#include "base/error.h"

namespace mtrain::storage {
namespace {

// Elements that a thread reads and checks while they are in its cache: 256 KiB of fp32.
constexpr int64_t kChunk = 64 << 10;
constexpr unsigned kMaxThreads = 4;  // for each rank of a host

constexpr uint32_t kExponent = 0x7f800000u;  // all its bits: infinite, or not a number
bool is_finite(float value) { return (std::bit_cast<uint32_t>(value) & kExponent) != kExponent; }

// Without a branch in the loop, since the compiler must vectorize it.
bool all_finite(const float* values, int64_t count) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < count; ++i) bad |= uint32_t(!is_finite(values[i]));
  return bad == 0;
}

}  // namespace

FiniteValues::FiniteValues(const ValueSource& from, Of of)
    : from_(from),
      of_(of),
      pool_(from.finite() ? 1
                          : int(std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads))) {
}

void FiniteValues::read(std::string_view name, int64_t first, int64_t count, float* values) const {
  if (from_.finite()) return from_.read(name, first, count, values);
  std::atomic<int64_t> bad{count};  // the first element of the run that is not finite
  pool_.run((count + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t begin = chunk * kChunk, n = std::min(kChunk, count - begin);
    from_.read(name, first + begin, n, values + begin);
    if (all_finite(values + begin, n)) return;
    int64_t at = begin, known = bad;
    while (is_finite(values[at])) ++at;
    while (at < known && !bad.compare_exchange_weak(known, at)) {
    }
  });
  const int64_t at = bad;
  if (at == count) return;
  const std::string what = fmt::format("{} has {} as element {}, which is not finite", origin(name),
                                       values[at], first + at);
  const char* hint =
      "the file is damaged, or the training that made it has diverged: use another file";
  if (of_ == Of::checkpoint) throw RunError(what, hint);
  throw UserError(what, hint);
}

}  // namespace mtrain::storage
