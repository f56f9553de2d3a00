// Reports a run to the user: banner, lines of steps, metrics.jsonl and profile. Only rank 0 has a
// Reporter.
#pragma once
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "observe/exposure.h"
#include "run/host_clocks.h"
#include "run/start_banner.h"
#include "run/step_times.h"
#include "train/trainer.h"

namespace mtrain::observe {
struct Metric;
class MetricsWriter;
class Profile;
class ProgressLine;
class TensorboardWriter;
}  // namespace mtrain::observe

namespace mtrain::run {

class Reporter {
 public:
  struct Options {
    bool profile = false;  // print the time of each operation at the end
    bool verbose = false;  // print communication by kind at the end
  };
  // A profile is added to the sinks of `times`, which must outlive it.
  Reporter(train::Trainer& trainer, observe::ProgressLine& progress, const Options& options,
           StepTimes& times);
  ~Reporter();

  void banner(const RunStart& start);  // only prints; writes no file
  // Begins the files of the run. Call it after a checkpoint is loaded.
  void start();
  // The line and the metrics of a step.
  void step(const train::StepStats& stats, const StepFigures& figures);
  // `best`: the loss is lower than the losses of all saved steps.
  void validation(double loss, int64_t samples, bool best);
  void save_failed();  // counts a checkpoint that could not be saved
  void local_copies_failed(int64_t copies) { failed_copies_ = copies; }  // until now
  void staged_locally(int64_t bytes);  // adds what a local copy has copied into memory
  void save_skipped();                 // counts a checkpoint that was due while another was written
  // `began`: when the save of the newest checkpoint began, after its step.
  void saved(std::chrono::steady_clock::time_point began) { newest_ = began; }
  // Adds a time for which training has waited for saves.
  void stalled(std::chrono::steady_clock::duration time);
  // A save in the background.
  struct Written {
    double seconds = 0;  // from the end of the copies to that of the save
    int64_t bytes = 0;   // of the tensors of all ranks
    int64_t staged = 0;  // of the copy of this rank
  };
  void written(const Written& save);
  void note(const std::string& text);  // prints lines
  void finish();                       // prints the closing lines and the profile

 private:
  void open_tensorboard();
  // Writes a record of a step or of an evaluation.
  void record(int64_t step, const std::vector<observe::Metric>& metrics);
  void note_skipped(const train::StepStats& stats);
  void add_stragglers(const observe::StragglerFinder::Check& check, int64_t step,
                      std::vector<observe::Metric>& metrics);
  // Adds the largest memory by category. `names` owns the names of its metrics.
  void add_memory(const StepFigures& figures, std::vector<observe::Metric>& metrics,
                  std::deque<std::string>& names);
  void add_saves(std::vector<observe::Metric>& metrics);
  std::string saves_text() const;  // the saves in the background
  // Adds a timed step's communication to its metrics; `names` owns the metrics' names.
  void add_communication(const StepFigures& figures, std::vector<observe::Metric>& metrics,
                         std::deque<std::string>& names);
  using Clock = std::chrono::steady_clock;

  train::Trainer& trainer_;
  const Options options_;
  double peak_flops_ = 0;       // FLOP/s of the device for the compute type; 0: unknown
  bool reported_peak_ = false;  // whether the run has reported a step that was faster than the peak
  observe::ProgressLine& progress_;
  std::unique_ptr<observe::MetricsWriter> metrics_;
  std::unique_ptr<observe::TensorboardWriter> tensorboard_;  // null if none is written
  StepTimes& times_;
  // A profile of all steps, and one of the steps after the warm-up, which is printed if there are
  // such steps.
  std::unique_ptr<observe::Profile> profile_, warm_profile_;
  Clock::time_point started_;
  ClockWatch clock_;
  // The steps, tokens, skipped steps, failed saves and communication of this process.
  int64_t steps_ = 0, tokens_ = 0, spikes_ = 0, failed_saves_ = 0, skipped_saves_ = 0;
  Clock::duration stalled_{0}, stalled_in_step_{0};  // in all, and since the last record
  int64_t failed_copies_ = 0;                        // on the hosts themselves
  std::optional<int64_t> staged_locally_;            // bytes since the last record
  int64_t saves_ = 0;                                // in the background
  Written all_written_;                              // of all of them
  std::optional<Written> last_written_;              // since the last record
  std::optional<Clock::time_point> newest_;          // when the save of the newest began
  int64_t timed_steps_ = 0, timed_ns_ = 0;  // timed steps after the warm-up, and their time
  observe::Exposure::ByKind communication_;
  int64_t starved_ns_ = 0;  // Exposure::take_starved_ns() of the steps in communication_
};

}  // namespace mtrain::run
