// Tests the clock of a GPU's events with a stand-in for a driver, whose clock runs faster than the
// host's.
#include <catch2/catch.hpp>

#include "device/device.h"
#include "device/gpu_clock.h"
#include "device_testing.h"

namespace device_gpu_clock_test {

using namespace mtrain;

namespace {

// An event is the GPU's time in ns.
using Clock = device::GpuClock<double>;

struct Driver {
  double gpu_ns = 5e9;
  int64_t host_ns() const { return int64_t(gpu_ns * (1 - 1e-5)); }
  Clock::Driver functions() {
    return {.event_now =
                [this] {
                  gpu_ns += 5e3;
                  const auto event = std::make_shared<const double>(gpu_ns);
                  gpu_ns += 5e3;
                  return event;
                },
            .elapsed_ms = [](double from, double to) { return float((to - from) * 1e-6); },
            .host_ns = [this] { return host_ns(); }};
  }
};

}  // namespace

TEST_CASE("after ten hours kernels of microseconds have their time and their order") {
  Driver driver;
  Clock clock(driver.functions());
  clock.renew();
  const auto first = clock.origin();
  driver.gpu_ns += 10 * 3600e9;
  clock.renew();  // a timed step begins
  int64_t last_end = driver.host_ns();
  for (int i = 0; i < 1000; ++i) {
    const double begin = driver.gpu_ns, end = driver.gpu_ns += 5e3;
    const auto [from, to] = clock.span_ns(*clock.origin(), begin, end);
    CHECK(std::abs(to - from - 5000) <= 5);
    CHECK(std::abs(to - driver.host_ns()) <= 100);
    CHECK(std::abs(from - last_end) <= 100);
    last_end = to;
    // Timings that began before the renewal are read from their own origin: their begins are
    // coarse, and their durations are not.
    const auto [old_from, old_to] = clock.span_ns(*first, begin, end);
    CHECK(std::abs(old_to - old_from - 5000) <= 5);
  }
}

TEST_CASE("each time a device gets a sink, its backend begins anew to measure") {
  class Counting : public LimitedBackend {
   public:
    explicit Counting(int& count)
        : LimitedBackend(std::make_shared<LimitedBackend::Control>()), count_(count) {}
    void begin_timings() override { ++count_; }

   private:
    int& count_;
  };
  struct Sink : device::TimingSink {
    void record(const device::Timing&) override {}
  } sink;
  int count = 0;
  const auto made = device::Device::on(std::make_unique<Counting>(count));
  made->set_timing_sink(&sink);
  made->set_timing_sink(&sink);
  CHECK(count == 2);
  made->set_timing_sink(nullptr);
  CHECK(count == 2);
}

}  // namespace device_gpu_clock_test
