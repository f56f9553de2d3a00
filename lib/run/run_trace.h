// The trace of a run: every rank records its launches, and one file at the end has them all.
#pragma once
#include <filesystem>
#include <string>

#include "observe/chrome_trace.h"
#include "train/trainer.h"

namespace mtrain::run {

class RunTrace {
 public:
  // All ranks call it, for their clocks are set against rank 0's. UserError where files cannot be
  // written there.
  RunTrace(train::Trainer& trainer, std::filesystem::path path);
  ~RunTrace();  // launches are not timed any more

  device::TimingSink& sink() { return trace_; }
  // Steps as the host sees them, on a track of their own.
  void step_begins();
  void step_done(int64_t step);
  // All ranks call it. Rank 0 gets a line on what was written, or why nothing was; the others get
  // an empty text.
  std::string finish();

 private:
  std::filesystem::path part_of(int rank) const;
  std::filesystem::path own_path() const;
  std::string merge();

  train::Trainer& trainer_;
  const std::filesystem::path path_;
  observe::ChromeTrace trace_;
  int64_t step_began_ns_ = 0;
};

}  // namespace mtrain::run
