// What the user sees of a run: banner, progress line, metrics.jsonl and profile.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "observe/exposure.h"
#include "train/trainer.h"

namespace mtrain {

class MetricsWriter;
class Profile;
class ProgressLine;
class TeeSink;

class Reporter {
 public:
  // `trace` (may be null) is told of launches, too.
  Reporter(Trainer& trainer, bool profile, TimingSink* trace);
  ~Reporter();

  void start();  // call after the trainer has been set to its first step
  void step(const StepStats& stats);
  void validation(double loss, int64_t samples);
  void note(const std::string& text);
  void finish();  // closing lines; prints the profile

 private:
  void begin_step();
  using Clock = std::chrono::steady_clock;

  Trainer& trainer_;
  double peak_flops_ = 0;  // of the type that computes; 0: unknown
  std::unique_ptr<ProgressLine> progress_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<Exposure> exposure_;  // null for a single rank
  // One profile of all steps, and one of those after the warm-up; the number of steps decides which
  // is printed.
  std::unique_ptr<Profile> profile_, warm_profile_;
  std::unique_ptr<TeeSink> sinks_;
  Clock::time_point started_, last_;
  // What this process has done.
  int64_t steps_ = 0, tokens_ = 0;
  Exposure::ByKind communication_;
};

}  // namespace mtrain
