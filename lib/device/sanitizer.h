// The stream sanitizer keeps vector clocks over launches and events. It reports two launches that
// access the same memory, one of them to write, if no chain of events, queue order and host
// synchronization orders them. It needs only the launches. It therefore works on every device and
// finds a race even if the timing happens to hide it.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "device/stream.h"

namespace mtrain::device {

// For each stream, by its index, the number of its launches that are known to have happened.
using VectorClock = std::vector<uint64_t>;

class Sanitizer {
 public:
  // In all of these functions `stream` is the stream's index.
  void add_stream(int stream, StreamId id);
  // Throws BugError, which names both launches, on a conflict.
  void on_launch(int stream, const LaunchInfo& info);
  VectorClock on_record(int stream) const;  // any thread may call it
  void on_wait(int stream, const VectorClock& event);
  // The host has seen the event: all later launches come after it.
  void on_host_wait(const VectorClock& event);

 private:
  struct Touch {
    int stream = -1;
    uint64_t clock = 0;
    const char* launch = "";
    uint64_t serial = 0;  // the allocation that had the memory at that time; 0: unknown
  };
  struct Range {  // the latest accesses of the addresses [key, end)
    uintptr_t end = 0;
    Touch write;
    std::vector<Touch> reads;  // the last read of each stream since `write`
  };

  std::map<uintptr_t, Range>::iterator split(uintptr_t at);
  // Makes ranges begin and end at these addresses, and adds empty ranges where there are none.
  void split_at_ends(uintptr_t begin, uintptr_t end);
  // Throws if no event orders `before` and `now`. The verbs name the accesses: "reads", "wrote".
  void check(const Touch& before, const Touch& now, const char* was, const char* is) const;
  void touch(const Access& access, const Touch& now, bool write);

  mutable std::mutex mutex_;
  std::vector<StreamId> ids_;        // by stream
  std::vector<VectorClock> clocks_;  // by stream
  VectorClock host_;
  std::map<uintptr_t, Range> ranges_;
};

}  // namespace mtrain::device
