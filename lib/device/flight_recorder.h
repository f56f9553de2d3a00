// The flight recorder keeps the last launches of a rank for failure reports.
#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "device/stream.h"

namespace mtrain::device {

class FlightRecorder {
 public:
  void record(const char* launch, const Stream& stream, uint64_t number);

  // Returns one line for each of the last `last` launches, the oldest first: its stream, its
  // number, its name, and whether it has finished.
  std::vector<std::string> lines(int last = kEntries) const;

  static constexpr int kEntries = 256;

 private:
  struct Entry {
    const char* launch = "";
    const Stream* stream = nullptr;
    uint64_t number = 0;  // its place within its stream
  };
  mutable std::mutex mutex_;  // a watchdog may read while the rank's thread writes
  std::array<Entry, kEntries> ring_;
  uint64_t count_ = 0;
};

}  // namespace mtrain::device
