// A failure on purpose, in the middle of a rank's work, to see what a job makes of it.
#pragma once
#include <functional>
#include <memory>
#include <string_view>

#include "device/device.h"
#include "plan/options/device_plan.h"

namespace mtrain::run {

class FaultInjection {
 public:
  FaultInjection(const plan::FaultOptions& options, int rank, Device& device);
  ~FaultInjection();

  void before_step(int64_t step);  // the number of its update, from 1
  // Returns what to call at each step of a save's commit; empty where no fault is due in the save.
  std::function<void(std::string_view)> in_save(int64_t step) const;
  // Call after the step and its save. UserError where the step had no such launch.
  void after_step(int64_t step);

 private:
  using Moment = plan::FaultOptions::Moment;
  struct Watch;
  void watch(const std::string& launch);
  bool is_due(int64_t step) const;
  void fail() const;

  const plan::FaultOptions options_;
  const int rank_;
  Device& device_;
  std::shared_ptr<Watch> watch_;
};

}  // namespace mtrain::run
