// The requests to end a run early: answers them at once, and knows what is not saved.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>

#include "run/end_texts.h"
#include "run/signal_guard.h"

namespace mtrain::observe {
class ProgressLine;
}

namespace mtrain::run {

class EarlyEnd {
 public:
  // Answers on `screen`, which is null on all ranks but rank 0. `saves` says whether the run saves
  // when it ends.
  EarlyEnd(observe::ProgressLine* screen, bool saves);

  int signal() const { return signals_.signal(); }  // that has come, or 0
  // Says what the run is at from now on; `step` is the present or the last step.
  void at(Doing doing, int64_t step);
  // Says what is done and saved. An empty path: there is no checkpoint.
  void progress(int64_t saved, int64_t steps_done, const std::filesystem::path& checkpoint);

 private:
  const bool saves_;
  std::atomic<Doing> doing_ = Doing::starting;
  std::atomic<int64_t> step_ = 0;
  SignalGuard signals_;  // last, since its thread uses the others
};

}  // namespace mtrain::run
