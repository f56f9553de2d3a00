// What the user sees of a run: banner, progress line, metrics.jsonl and profile.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "observe/exposure.h"
#include "train/trainer.h"

namespace mtrain::observe {
class MetricsWriter;
class Profile;
class ProgressLine;
class TeeSink;
}  // namespace mtrain::observe

namespace mtrain::run {

class Reporter {
 public:
  // `trace` (may be null) is told of launches, too.
  Reporter(train::Trainer& trainer, bool profile, device::TimingSink* trace);
  ~Reporter();

  void start();  // call after the trainer has been set to its first step
  void step(const train::StepStats& stats);
  void validation(double loss, int64_t samples);
  void note(const std::string& text);
  void finish();  // closing lines; prints the profile

 private:
  void begin_step();
  using Clock = std::chrono::steady_clock;

  train::Trainer& trainer_;
  double peak_flops_ = 0;  // of the type that computes; 0: unknown
  std::unique_ptr<observe::ProgressLine> progress_;
  std::unique_ptr<observe::MetricsWriter> metrics_;
  std::unique_ptr<observe::Exposure> exposure_;  // null for a single rank
  // One profile of all steps, and one of those after the warm-up; the number of steps decides which
  // is printed.
  std::unique_ptr<observe::Profile> profile_, warm_profile_;
  std::unique_ptr<observe::TeeSink> sinks_;
  Clock::time_point started_, last_;
  // What this process has done.
  int64_t steps_ = 0, tokens_ = 0;
  observe::Exposure::ByKind communication_;
};

}  // namespace mtrain::run
