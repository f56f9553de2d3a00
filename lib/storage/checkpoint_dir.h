// Checkpoint folders such as `<root>/step-00000120`; each is complete or absent. Files are written
// into a temporary folder; commit() writes checksums and a manifest of all files, syncs them, and
// renames the folder. The file `<root>/latest` names the newest checkpoint. If the best checkpoints
// are kept, the link `<root>/best` leads to the one with the lowest validation loss.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/checkpoint_index.h"
#include "storage/folder_lease.h"
#include "storage/retention.h"
#include "storage/temporary_checkpoint.h"

namespace mtrain::storage {

struct CheckpointRef {
  std::filesystem::path path;
  int64_t step = 0;
};

class CheckpointWriter {
 public:
  // Makes a temporary folder (temporary_checkpoint.h), and `root` if it is missing. commit() keeps
  // the checkpoints of `keep`, including its own, and those that `best` names or a program reads.
  // Folders that cannot be read do not count and are not deleted. Throws RunError.
  CheckpointWriter(std::filesystem::path root, int64_t step, KeepRule keep = {},
                   SavingJob job = {});
  ~CheckpointWriter();  // deletes the temporary folder unless commit() was called
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // The folder in which the caller puts the files.
  const std::filesystem::path& folder() const { return temporary_; }

  // Makes this a checkpoint of format 2: commit() writes index.json instead of manifest.json.
  // `sums` has the hashes of the .sums files of the tensors' files.
  void set_index(CheckpointIndex index, std::map<std::string, std::string> sums) {
    index_ = std::move(index);
    sums_ = std::move(sums);
  }

  // Returns the checkpoint's final path. Replaces a checkpoint of the same step. Throws RunError
  // (the disk is full, ...); the earlier checkpoints are then unchanged.
  std::filesystem::path commit();

  // Sets a function that commit() calls before each of its steps, with the step's name. Tests use
  // it to kill the process there.
  void set_step_hook(std::function<void(std::string_view)> hook) { hook_ = std::move(hook); }

  // How long commit() waits for programs that read a checkpoint which it replaces.
  void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }

 private:
  void step(std::string_view name) const {
    if (hook_) hook_(name);
  }
  void await_readers() const;
  void move_into_place();
  void delete_old() const;

  std::filesystem::path root_, temporary_, final_;
  int64_t step_;
  KeepRule keep_;
  SavingJob job_;
  std::optional<FolderLease> lease_;  // until the folder is renamed
  bool committed_ = false;
  std::optional<CheckpointIndex> index_;
  std::map<std::string, std::string> sums_;
  std::function<void(std::string_view)> hook_;
  std::chrono::milliseconds patience_ = std::chrono::seconds(60);
};

// Returns the newest checkpoint in `root`, that of the highest step; nothing if `root` holds no
// folder of a checkpoint, or does not exist. Warns if `root/latest` names another: a run may have
// been killed before it wrote that file. Throws RunError, which names the file, if the newest
// folder cannot be read: no run may silently resume from an older checkpoint or start from scratch.
// It is a DamagedCheckpoint if a file's content is wrong. Throws RunError as well if all
// checkpoints were set aside as damaged.
std::optional<CheckpointRef> find_latest(const std::filesystem::path& root);

// Returns the newest checkpoint whose small files and sizes are sound; nothing if there is none.
std::optional<CheckpointRef> newest_sound(const std::filesystem::path& root);
// Returns all such checkpoints, in the order of their steps.
std::vector<CheckpointRef> list_complete(const std::filesystem::path& root);

// Describes the complete checkpoints of a folder to steps_to_keep(). `saved` is the one just saved.
RetainedFrom retained_from(const std::filesystem::path& root,
                           const std::vector<CheckpointRef>& complete,
                           std::optional<int64_t> saved = {});

// Deletes a checkpoint. A process that is killed meanwhile leaves all of it, or a temporary folder.
// Calls `renamed`, if given, when the folder has lost its name. Warns if it cannot be deleted.
void delete_checkpoint(const std::filesystem::path& root, const CheckpointRef& checkpoint,
                       const SavingJob& job = {}, const std::function<void()>& renamed = {});

// Whether mtrain made the folder for a checkpoint, damaged or not. Its name, state.json, or its
// manifest shows this.
bool is_ours(const std::filesystem::path& folder);

// Returns the checkpoint in `folder`, which may be a link to it; nothing if the folder is not one
// of a checkpoint. Throws RunError, which names the file, if a file is missing or differs in size
// or content from what was saved. Tensors are not read; their reader (SafetensorsReader) checks
// their bytes.
std::optional<CheckpointRef> complete_checkpoint(const std::filesystem::path& folder);

// Returns a hash that identifies the content of the checkpoint in `folder`, from its manifest;
// empty if this cannot be read.
std::string identity_of(const std::filesystem::path& folder);

// Returns the folders of steps after `step`, in their order, whether they can be read or not.
std::vector<CheckpointRef> checkpoints_after(const std::filesystem::path& root, int64_t step);

// Makes `root/latest` name the checkpoint of `step`.
void set_latest(const std::filesystem::path& root, int64_t step);

// The entry of state.json that holds the validation loss of a checkpoint's weights, if it is known.
inline constexpr const char* kValidationLoss = "validation_loss";
// The entry with the number of samples of that mean loss. A run that measures no loss at this step
// records how many its other evaluations have.
inline constexpr const char* kValidationSamples = "validation_samples";

// Returns the finite validation loss that a sound checkpoint holds; nothing if it has none.
std::optional<double> validation_loss(const std::filesystem::path& checkpoint);

// The steps that `latest` and `best` name; -1: none.
struct NamedSteps {
  int64_t latest = -1, best = -1;
};
NamedSteps named_steps(const std::filesystem::path& root);

struct ScoredCheckpoint {
  CheckpointRef checkpoint;
  double loss = 0;      // of the validation data, finite
  int64_t samples = 0;  // of that data
};
// Returns the checkpoints whose validation loss is known, the lowest loss first; of equal ones the
// earliest first. Leaves out folders that cannot be read, and losses over a different number of
// samples from the newest one's.
std::vector<ScoredCheckpoint> best_checkpoints(const std::filesystem::path& root);

// Makes the link `root/best` lead to the first of best_checkpoints() up to `last_step`; if there is
// none, removes the link. Warns, and changes nothing, if the file system has no links.
void link_best(const std::filesystem::path& root,
               int64_t last_step = std::numeric_limits<int64_t>::max());
// Whether there is such a link.
bool has_best(const std::filesystem::path& root);

// Returns the checkpoint at `path`, or the latest one of the checkpoints in that folder. Throws
// UserError if there is none, RunError like find_latest().
CheckpointRef checkpoint_at(const std::filesystem::path& path);

// Makes the folder if it is missing. Throws UserError, which names `field`, if no checkpoint can be
// saved in it.
void require_writable(const std::filesystem::path& root, std::string_view field);

}  // namespace mtrain::storage
