// Saves the checkpoints of a run, at once or while training continues (checkpoint.async), and
// decides what a failed save means for the run.
#pragma once
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/background_saver.h"
#include "launch/job.h"
#include "run/run_checkpoint.h"
#include "run/save_failures.h"
#include "train/trainer.h"

namespace mtrain::observe {
class ProgressLine;
}

namespace mtrain::run {

class EarlyEnd;
class FaultInjection;
class Reporter;

// All ranks make one object, and call its functions alike unless a comment says otherwise.
class RunSaver {
 public:
  struct Parts {
    train::Trainer& trainer;
    const launch::Job& job;
    observe::ProgressLine* screen;  // null on all ranks but rank 0
    EarlyEnd& early_end;
    FaultInjection* fault;  // null without debug.fault
    // Called on rank 0 before a checkpoint gets its name, perhaps from another thread. Throws
    // RunError if the folder or the data are no longer those of this run.
    std::function<void()> require_ours;
    // Called before a save begins, which may delete earlier checkpoints.
    std::function<void()> before_save;
    // Called when the checkpoint newest() is complete.
    std::function<void()> on_saved;
  };
  explicit RunSaver(Parts parts);

  // Decides whether checkpoints are written in the background, and makes the memory for it. Returns
  // a text for the banner, which may be empty.
  std::string choose();
  // These exist only on some ranks; null is allowed.
  void set(Reporter* reporter, const DataIdentity* data) { reporter_ = reporter, data_ = data; }

  struct Request {
    bool last = false;                           // no later save of this run can replace it
    bool best = false;                           // the lowest validation loss so far: never skipped
    std::optional<ValidationResult> evaluation;  // of these weights
    int64_t validation_samples = 0;              // of each evaluation of this run; 0: none
    bool exceeds_bytes = false;
    checkpoint::AddedFiles added = {};  // to the checkpoint's own; may be empty
  };
  void save(const Request& request);

  // Whether a save is being written in the background.
  bool writing() const { return background_ && background_->saving(); }
  // Whether that save has ended, as far as this rank knows. Once it is true on any rank, all ranks
  // call end_write().
  bool ended() { return background_ && background_->ended(); }
  void end_write();
  // Waits until no save is being written.
  void finish_write();

  // The newest checkpoint of this run.
  struct Newest {
    int64_t step = 0;
    bool with_loss = false;      // this start saved it with the loss of its step
    std::filesystem::path path;  // on rank 0, if the run owns it; else empty
  };
  const Newest& newest() const { return newest_; }
  // The run continues from a checkpoint; the path is empty if it is not this run's own.
  void continue_from(int64_t step, const std::filesystem::path& path) {
    newest_ = {.step = step, .path = path};
  }
  // The step of the save that is being written, or of the last one.
  int64_t written_step() const { return written_.step; }
  // The copy in memory from which this step is being written; null if it is not.
  std::shared_ptr<const checkpoint::Snapshot> staged(int64_t step) const {
    return writing() && written_.step == step ? background_->staged() : nullptr;
  }
  // The lowest validation loss of a saved step.
  double lowest_loss() const { return lowest_loss_; }
  void set_lowest_loss(double loss) { lowest_loss_ = loss; }
  void report_progress();  // to the answer to a second signal

 private:
  struct Written {
    int64_t step = 0;
    bool last = false;
    std::optional<double> loss;
    std::chrono::steady_clock::time_point began;
  };
  class Stall;  // adds its lifetime to the time that training has waited
  // Decides whether a save may begin although another is being written.
  bool may_begin(const Request& request);
  std::function<void(std::string_view)> moments(int64_t step);
  void succeeded(const std::filesystem::path& checkpoint);
  void failed(const checkpoint::SaveError& error);
  void note(const std::string& text);
  void show(const std::string& activity);
  void shown_no_more();

  const Parts p_;
  const plan::CheckpointOptions& options_;
  const std::filesystem::path root_;
  Reporter* reporter_ = nullptr;
  const DataIdentity* data_ = nullptr;
  SaveFailures failures_;
  Newest newest_;
  double lowest_loss_ = std::numeric_limits<double>::infinity();
  Written written_;  // the save in progress, or the last one
  // Why a save on rank 0 must end the run (require_ours).
  std::exception_ptr lost_;
  int stalls_ = 0;  // objects of Stall, which nest
  std::optional<checkpoint::BackgroundSaver>
      background_;  // the last member: its thread uses others
};

}  // namespace mtrain::run
