// Checkpoint folders such as `<root>/step-00000120`, each of which is complete or absent. Files are
// written into a temporary folder; commit() writes checksums and a manifest of all files, syncs
// them, and renames the folder. The file `<root>/latest` names the newest checkpoint.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain::storage {

class CheckpointWriter {
 public:
  // Makes the folder `<root>/step-<step>.tmp-<pid>-<host>/`, and `root` if it is missing. commit()
  // leaves the newest `keep` checkpoints, its own among them; 0 leaves all. Folders that cannot be
  // read neither count nor are deleted. Throws RunError.
  CheckpointWriter(std::filesystem::path root, int64_t step, int keep = 0);
  ~CheckpointWriter();  // deletes the temporary folder unless commit() was called
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // The folder in which the caller puts the files.
  const std::filesystem::path& folder() const { return temporary_; }

  // Returns the checkpoint's final path. Replaces a checkpoint of the same step. Throws RunError
  // (the disk is full, ...); the earlier checkpoints are then as they were.
  std::filesystem::path commit();

  // Sets a function that commit() calls before each of its steps, with the step's name. Tests use
  // it to kill the process there.
  void set_step_hook(std::function<void(std::string_view)> hook) { hook_ = std::move(hook); }

 private:
  void step(std::string_view name) const {
    if (hook_) hook_(name);
  }
  void move_into_place();
  void delete_old() const;

  std::filesystem::path root_, temporary_, final_;
  int64_t step_;
  int keep_;
  bool committed_ = false;
  std::function<void(std::string_view)> hook_;
};

struct CheckpointRef {
  std::filesystem::path path;
  int64_t step = 0;
};

// Returns the newest checkpoint in `root`, that of the highest step; nothing if `root` holds no
// folder of a checkpoint, or does not exist. Warns if `root/latest` names another: a run may have
// been killed before it wrote that. Throws RunError, which names the file, if the newest folder
// cannot be read, so that no run goes back, or starts anew, without being told to.
std::optional<CheckpointRef> find_latest(const std::filesystem::path& root);

// Whether mtrain made the folder for a checkpoint, damaged or not: by its name, by state.json, or
// by its manifest.
bool is_ours(const std::filesystem::path& folder);

// Returns the checkpoint in `folder`; nothing if the folder is not one of a checkpoint. Throws
// RunError, which names the file, if a file is missing, has another size or is not as it was saved.
// Tensors are not read; whoever reads them (SafetensorsReader) checks their bytes.
std::optional<CheckpointRef> complete_checkpoint(const std::filesystem::path& folder);

// Returns the folders of steps after `step`, in their order, whether they can be read or not.
std::vector<CheckpointRef> checkpoints_after(const std::filesystem::path& root, int64_t step);

// Makes `root/latest` name the checkpoint of `step`.
void set_latest(const std::filesystem::path& root, int64_t step);

// Finds the checkpoint at `path`, or the latest one of the checkpoints in that folder. UserError
// where it holds none, RunError as find_latest().
CheckpointRef checkpoint_at(const std::filesystem::path& path);

// Makes the folder if it is missing. Throws UserError, which names `field`, if no checkpoint can be
// saved in it.
void require_writable(const std::filesystem::path& root, std::string_view field);

}  // namespace mtrain::storage
