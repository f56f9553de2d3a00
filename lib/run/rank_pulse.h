// Shows in the pulse of this rank (base/pulse.h) what the run does.
#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "base/pulse.h"
#include "device/device.h"
#include "run/end_texts.h"

namespace mtrain::run {

// Begins the phase of an activity.
void show_activity(Pulse& pulse, Doing doing, int64_t step);

// While it lives, the pulse has the launches of a device. A thread looks which of them are done,
// since the rank's own thread may wait for one of them.
class DevicePulse {
 public:
  DevicePulse(Device& device, std::shared_ptr<Pulse> pulse);
  ~DevicePulse();
  DevicePulse(const DevicePulse&) = delete;
  DevicePulse& operator=(const DevicePulse&) = delete;

  // Shows the time of a step since the step before, or since the last pause, and the memory that
  // the device uses.
  void step_done(std::chrono::steady_clock::time_point ended);
  // The time since the last step, such as that of a save, counts for no step.
  void pause() { last_ = std::chrono::steady_clock::now(); }
  const std::shared_ptr<Pulse>& shared() const { return pulse_; }
  Pulse& operator*() const { return *pulse_; }
  Pulse* operator->() const { return pulse_.get(); }

 private:
  void look();

  Device& device_;
  const std::shared_ptr<Pulse> pulse_;
  std::chrono::steady_clock::time_point last_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace mtrain::run
