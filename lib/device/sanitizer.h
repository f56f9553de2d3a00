// The stream sanitizer: vector clocks over launches and events. Any two accesses to the same
// memory, one of them a write, by launches that no chain of events, queue order or host
// synchronization orders, are reported with both launch names. It looks at launches only, so it
// works on every device, and finds a race even when the timing happens to hide it.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/stream.h"

namespace mtrain {

// By stream id: launches of that stream known to have happened.
using VectorClock = std::vector<uint64_t>;

class Sanitizer {
 public:
  void add_stream(int id, std::string name);

  // Throws BugError on a conflict.
  void on_launch(int stream, const LaunchInfo& info);
  VectorClock on_record(int stream) const;  // any thread: memory is released where work ends
  void on_wait(int stream, const VectorClock& event);
  // The host has seen the event: all later launches follow it.
  void on_host_wait(const VectorClock& event);

 private:
  struct Touch {
    int stream = -1;
    uint64_t clock = 0;
    const char* launch = "";
    uint64_t serial = 0;  // of the allocation at the time
  };
  struct Range {  // what is known of [key, end)
    uintptr_t end = 0;
    Touch write;
    std::vector<Touch> reads;  // the last of each stream since `write`
  };

  std::map<uintptr_t, Range>::iterator split(uintptr_t at);
  // Makes range borders at both ends, and empty ranges where none were.
  void cut(uintptr_t begin, uintptr_t end);
  void check(const Touch& before, const Touch& now, const char* was, const char* is) const;
  void touch(const Access& access, const Touch& now, bool write);

  mutable std::mutex mutex_;
  std::vector<std::string> names_;
  std::vector<VectorClock> clocks_;  // by stream
  VectorClock host_;
  std::map<uintptr_t, Range> ranges_;
};

}  // namespace mtrain
