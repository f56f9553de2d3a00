// Checkpoint folders, `<root>/step-00000120`, each of which exists fully or not at all. Files are
// put into a temporary folder; commit() writes a manifest (every file with its size), syncs all
// files, and renames the folder. `<root>/latest` names the newest checkpoint.
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
  // Makes `<root>/step-<step>.tmp-<pid>-<host>/`, and `root` itself where needed. keep: how many
  // checkpoints commit() leaves, the one it makes included; 0 leaves all. Throws RunError.
  CheckpointWriter(std::filesystem::path root, int64_t step, int keep = 0);
  ~CheckpointWriter();  // without commit() nothing remains
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  const std::filesystem::path& folder() const { return temporary_; }  // put the files here

  // Returns the checkpoint's final path. A checkpoint of the same step is replaced. When it throws
  // (RunError, disk full), the earlier checkpoints are as they were.
  std::filesystem::path commit();

  // Called before each step of commit() with the step's name; for tests that kill the process
  // there.
  void set_step_hook(std::function<void(std::string_view)> hook) { hook_ = std::move(hook); }

 private:
  void step(std::string_view name) const {
    if (hook_) hook_(name);
  }
  void write_manifest() const;
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

// Returns the checkpoint that `root/latest` names. Where that one is missing or incomplete, it
// warns and returns the complete one of the highest step; nothing where there is none, or no such
// folder.
std::optional<CheckpointRef> find_latest(const std::filesystem::path& root);

// Returns the checkpoint in `folder` if all files of its manifest are there at full size; nothing
// otherwise.
std::optional<CheckpointRef> complete_checkpoint(const std::filesystem::path& folder);

// The complete checkpoints of later steps, in their order.
std::vector<CheckpointRef> checkpoints_after(const std::filesystem::path& root, int64_t step);

// Makes `root/latest` name the checkpoint of this step.
void set_latest(const std::filesystem::path& root, int64_t step);

// Finds the checkpoint at `path`, or the latest one of the checkpoints in that folder. UserError
// where it holds no complete checkpoint.
CheckpointRef checkpoint_at(const std::filesystem::path& path);

}  // namespace mtrain::storage
