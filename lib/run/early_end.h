// The requests to end a run early: answers them immediately, and reports what is not saved.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "base/pulse.h"
#include "run/end_texts.h"
#include "run/signal_guard.h"

namespace mtrain::observe {
class ProgressLine;
}

namespace mtrain::run {

class EarlyEnd {
 public:
  // Answers on `screen`, which is null on all ranks but rank 0. `saves`: the run saves a checkpoint
  // when it ends. The pulse shows what the run does.
  EarlyEnd(observe::ProgressLine* screen, bool saves, std::shared_ptr<Pulse> pulse);

  Pulse& pulse() { return *pulse_; }
  int signal() const { return signals_.signal(); }  // the signal that was received, or 0
  // Sets the current activity of the run; `step` is the current or the last step.
  void at(Doing doing, int64_t step);
  // Does `work` as another activity, and returns to the current one.
  void during(Doing doing, const std::function<void()>& work);
  // Sets the steps that are saved and done. An empty path: there is no checkpoint.
  void progress(int64_t saved, int64_t steps_done, const std::filesystem::path& checkpoint);

 private:
  const bool saves_;
  const std::shared_ptr<Pulse> pulse_;
  std::atomic<Doing> doing_ = Doing::starting;
  std::atomic<int64_t> step_ = 0;
  SignalGuard signals_;  // last member, since its thread uses the others
};

}  // namespace mtrain::run
