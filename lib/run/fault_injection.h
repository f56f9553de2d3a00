// Kills or stops a rank in the middle of its work (debug.fault), to test how the job handles it.
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

  void before_step(int64_t step);  // steps are counted from 1
  // Returns the function to call at the moments of a save (checkpoint::SaveOptions::on_commit);
  // empty if no fault is due in the save of this step.
  std::function<void(std::string_view)> in_save(int64_t step) const;
  // Returns the function to call while the Hugging Face form of this step's checkpoint is written;
  // empty if no fault is due there.
  std::function<void()> in_save_consolidated(int64_t step) const;
  // Call it after the step and its save. Throws UserError if a fault was due and did not happen,
  // because the step had no such launch or no save.
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
