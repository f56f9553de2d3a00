// The flight recorder keeps the last launches of a rank for failure reports, in the rank's pulse.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/pulse.h"
#include "device/stream.h"

namespace mtrain::device {

class FlightRecorder {
 public:
  // Uses this page from now on; until then the recorder has one of its own. The device outlives
  // its use by other threads.
  void show_in(std::shared_ptr<Pulse> pulse);

  void record(const char* launch, const Stream& stream, uint64_t number);
  // Brings the counts of finished items in the page up to date. Any thread may call it.
  void update();

  // Returns launch_lines() of the last `last` launches.
  std::vector<std::string> lines(int last = kEntries);

  static constexpr int kEntries = Pulse::kLaunches;

 private:
  void name(const Stream& stream);

  std::shared_ptr<Pulse> pulse_ = std::make_shared<Pulse>();
  // The streams that have launched something, by their index. A watchdog may read them while the
  // rank's thread adds one.
  std::array<std::atomic<const Stream*>, Pulse::kStreams> streams_{};
  uint64_t count_ = 0;
};

}  // namespace mtrain::device
