// Places pairs of a GPU's events on the host's clock. Drivers give the time between two events as a
// float of milliseconds: after 10 minutes its last bit is 62 us, as long as a kernel. A duration is
// therefore measured between its own two events, and its begin from a recent origin. This header
// includes nothing of CUDA.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace mtrain::device {

// Only the rank's host thread calls it.
template <class Event>
class GpuClock {
 public:
  struct Driver {
    // Records an event on a stream that has no other work, and waits for it.
    std::function<std::shared_ptr<const Event>()> event_now;
    std::function<float(const Event& from, const Event& to)> elapsed_ms;
    std::function<int64_t()> host_ns;
  };
  struct Origin {
    std::shared_ptr<const Event> event;
    int64_t host_ns = 0;
  };
  explicit GpuClock(Driver driver) : driver_(std::move(driver)) {}

  // The two clocks drift apart: call it at the begin of each timed step. All streams of a device
  // share the origin; events before it keep theirs.
  void renew() {
    const int64_t before = driver_.host_ns();
    auto event = driver_.event_now();
    const int64_t after = driver_.host_ns();
    origin_ = std::make_shared<Origin>(Origin{std::move(event), before + (after - before) / 2});
  }
  std::shared_ptr<const Origin> origin() const { return origin_; }

  // Returns begin and end on the host's clock.
  std::pair<int64_t, int64_t> span_ns(const Origin& origin, const Event& begin,
                                      const Event& end) const {
    const int64_t from = origin.host_ns + ns(driver_.elapsed_ms(*origin.event, begin));
    return {from, from + ns(driver_.elapsed_ms(begin, end))};
  }

 private:
  static int64_t ns(float ms) { return int64_t(double(ms) * 1e6); }

  const Driver driver_;
  std::shared_ptr<const Origin> origin_;
};

}  // namespace mtrain::device
