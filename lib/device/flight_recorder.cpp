#include "device/flight_recorder.h"

#include <algorithm>

#include <fmt/core.h>

namespace mtrain::device {

void FlightRecorder::record(const char* launch, const Stream& stream, uint64_t number) {
  std::lock_guard lock(mutex_);
  ring_[count_++ % kEntries] = {launch, &stream, number};
}

std::vector<std::string> FlightRecorder::lines(int last) const {
  std::lock_guard lock(mutex_);
  const uint64_t n = std::min({count_, uint64_t(last), uint64_t(kEntries)});
  std::vector<std::string> out;
  for (uint64_t i = count_ - n; i < count_; ++i) {
    const Entry& e = ring_[i % kEntries];
    out.push_back(fmt::format("{:>8} #{:<7} {:<24} {}", e.stream->name(), e.number, e.launch,
                              e.stream->completed() >= e.number ? "done" : "pending"));
  }
  return out;
}

}  // namespace mtrain::device
