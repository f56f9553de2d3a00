// Makes a rank fail in the middle of its work (debug.fault), to test how the job handles it.
#pragma once
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launch/job.h"
#include "plan/options/device_plan.h"
#include "train/trainer.h"

namespace mtrain::run {

// Does what the faults of this rank in phase `rendezvous` are: call it before the ranks connect.
void fail_in_rendezvous(const std::vector<plan::FaultOptions>& faults, const launch::Job& job);

// The faults of one rank, each of which happens once.
class FaultInjection {
 public:
  FaultInjection(const std::vector<plan::FaultOptions>& faults, train::Trainer& trainer);
  ~FaultInjection();

  void in_load();
  void before_step(int64_t step);  // steps are counted from 1
  void before_evaluation(int64_t step);
  // Returns the function to call at the moments of a save (checkpoint::SaveOptions::on_commit);
  // empty if no fault is due in the save of this step.
  std::function<void(std::string_view)> in_save(int64_t step);
  // Returns the function to call while the Hugging Face form of this step's checkpoint is written;
  // empty if no fault is due there.
  std::function<void()> in_save_consolidated(int64_t step);
  // Call it after the step and its save. Throws UserError if a fault was due and did not happen,
  // because the step had no such launch or no save.
  void after_step(int64_t step);
  // Call it when the run ends, after the last step's evaluation.
  void at_end();
  // Call it after the last save. Throws as after_step() for a fault in one of the steps that this
  // start has made.
  void require_happened(int64_t first, int64_t last) const;

 private:
  struct Fault {
    plan::FaultOptions options;
    bool happened = false;
  };
  using Moment = plan::FaultOptions::Moment;

  // Returns the faults that have not happened and are due in this step.
  std::vector<Fault*> due(int64_t step);
  void now(Fault& fault);  // what needs no launch
  // Watches the launches for the first one that a fault waits for.
  void watch();
  bool is_place_of(const Fault& fault, const Stream& stream, const device::LaunchInfo& info) const;
  void in_launch(Fault& fault, Stream& stream, const device::LaunchInfo& info);
  void multiply_gradients(float factor);
  [[noreturn]] void refuse(const Fault& fault, int64_t step) const;

  train::Trainer& trainer_;
  std::vector<Fault> faults_;    // of this rank
  std::vector<Fault*> waiting_;  // for a launch
  bool in_evaluation_ = false;
  std::set<std::string> launches_;  // names that have been seen while faults waited
};

}  // namespace mtrain::run
