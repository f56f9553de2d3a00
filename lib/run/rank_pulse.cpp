#include "run/rank_pulse.h"

#include <utility>

#include "base/error.h"
#include "device/flight_recorder.h"

namespace mtrain::run {

namespace {

// Short beside the limit of any phase.
constexpr std::chrono::milliseconds kBetweenLooks{250};

PulsePhase phase_of(Doing doing) {
  switch (doing) {
    case Doing::starting: return PulsePhase::start;
    case Doing::step:
    case Doing::step_done: return PulsePhase::step;
    case Doing::evaluation: return PulsePhase::evaluation;
    case Doing::save: return PulsePhase::save;
    case Doing::ending: return PulsePhase::end;
  }
  throw BugError("what a run does");
}

}  // namespace

void show_activity(Pulse& pulse, Doing doing, int64_t step) { pulse.at(phase_of(doing), step); }

DevicePulse::DevicePulse(Device& device, std::shared_ptr<Pulse> pulse)
    : device_(device), pulse_(std::move(pulse)), last_(std::chrono::steady_clock::now()) {
  device_.recorder().show_in(pulse_);
  thread_ = std::thread([this] { look(); });
}

DevicePulse::~DevicePulse() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void DevicePulse::look() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kBetweenLooks, [this] { return stop_; }))
    device_.recorder().update();
}

void DevicePulse::step_done(std::chrono::steady_clock::time_point ended) {
  pulse_->step_done(std::chrono::duration<double>(ended - std::exchange(last_, ended)).count());
  const device::MemoryUsage memory = device_.allocator().total();
  pulse_->set_memory(memory.current, memory.peak);
}

}  // namespace mtrain::run
