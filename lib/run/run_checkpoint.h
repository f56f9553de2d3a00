// Saves and loads the checkpoints of a run: the state of the training, and the run's choice of bf16
// arithmetic.
#pragma once
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/background_saver.h"
#include "checkpoint/local_saver.h"
#include "run/data_identity.h"
#include "train/trainer.h"

namespace mtrain::run {

// Receives a line for the screen, such as "reading weights 34 %"; may be empty.
using ShowActivity = std::function<void(const std::string& text)>;

// The result of a validation.
struct ValidationResult {
  double loss = std::numeric_limits<double>::quiet_NaN();  // NaN: nothing was measured
  int64_t samples = 0;
};

// What a save of a run takes besides the training.
struct RunSave {
  // Called at the moments of the save (checkpoint::SaveOptions); may be empty.
  std::function<void(std::string_view)> on_commit = {};
  bool exceeds_bytes = false;          // the future result of interchange::exceeds_bytes()
  const DataIdentity* data = nullptr;  // of rank 0, describes the contents of the data
  ShowActivity show = {};
  // For the saved weights, if they were evaluated; else with the number of samples alone.
  ValidationResult evaluation = {};
  storage::SavingJob job = {};
  checkpoint::AddedFiles added = {};  // to the checkpoint's own; may be empty
};

// Saves a checkpoint into the folder `root`. All ranks must call it; rank 0 returns the
// checkpoint's path, the others an empty path. Throws checkpoint::SaveError on all ranks.
std::filesystem::path save_run(train::Trainer& trainer, const std::filesystem::path& root,
                               const RunSave& save = {});

// Begins the same in the background, as it is now; training may continue. All ranks must call it.
void begin_save(train::Trainer& trainer, const std::filesystem::path& root, const RunSave& save,
                checkpoint::BackgroundSaver& saver);

// Begins a copy on the hosts themselves, as the training is now. All ranks must call it. `staged`
// is null, or a copy of this step in memory.
void begin_local(train::Trainer& trainer, const RunSave& save, checkpoint::LocalSaver& saver,
                 std::shared_ptr<const checkpoint::Snapshot> staged = {});

// Makes the trainer continue from the checkpoint in `folder`. Throws UserError if the checkpoint
// does not fit the run's model, data or seed. If it has adapters alone, the frozen weights are read
// from model.from. Rank 0 compares the data by `data`; if that is null,
// it compares their names. Returns a note about the comparison, usually empty. All ranks must call
// it.
std::string resume_run(train::Trainer& trainer, const std::filesystem::path& folder,
                       DataIdentity* data = nullptr, const ShowActivity& show = {});

// Returns the progress that the checkpoint records. Rank 0 reads it, before the checkpoint is
// loaded. If it cannot, the steps and the present batch give the samples, and loading reports why.
// All ranks must call it.
checkpoint::TrainProgress agreed_progress(const train::Trainer& trainer,
                                          const storage::CheckpointRef& start);

// Returns how many samples each validation has: validation.steps batches, or 0, which means all of
// the data. A run that continues with another batch, and the same validation.steps, keeps the
// earlier number: its losses can then be compared with those before. Rank 0 reads the checkpoint
// `start`, if there is one. All ranks must call it.
int64_t agreed_validation_samples(const train::Trainer& trainer,
                                  const std::optional<storage::CheckpointRef>& start);

// Returns lines about the settings that differ from those of the run that saved the checkpoint,
// which `trainer` has loaded; empty if there are none. `validation_samples`: of each validation of
// this run; 0 without validation.
std::string changes_text(const train::Trainer& trainer, const std::filesystem::path& checkpoint,
                         int64_t validation_samples);

// Loads the weights of the Hugging Face folder model.from into a run; without model.from it does
// nothing. Adapters keep their values. Each rank reads its own part. Throws UserError if the folder
// is not supported, is not the run's model, or differs on a rank; it names the rank. Returns a note
// about tensors that are left out. All ranks must call it.
std::string start_from_folder(train::Trainer& trainer, const ShowActivity& show = {});

}  // namespace mtrain::run
