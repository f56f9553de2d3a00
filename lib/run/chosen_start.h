// What a run starts from: a checkpoint, a local copy that is newer, or nothing.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "storage/checkpoint_dir.h"

namespace mtrain::run {

class ChosenStart {
 public:
  ChosenStart() = default;
  explicit ChosenStart(std::optional<storage::CheckpointRef> saved) : saved_(std::move(saved)) {}

  explicit operator bool() const { return copy_ || saved_; }
  const storage::CheckpointRef& operator*() const { return copy_ ? *copy_ : *saved_; }
  const storage::CheckpointRef* operator->() const { return &**this; }

  // The checkpoint without local copies.
  const std::optional<storage::CheckpointRef>& saved() const { return saved_; }
  int64_t saved_step() const { return saved_ ? saved_->step : 0; }
  bool is_local() const { return copy_.has_value(); }
  // `dir` is checkpoint.local.dir.
  void set_local(storage::CheckpointRef copy, std::string dir) {
    copy_ = std::move(copy);
    dir_ = std::move(dir);
  }
  void leave_local() { copy_.reset(); }

  std::string text() const {
    return copy_ ? "the local copies in " + dir_ : saved_ ? saved_->path.string() : "";
  }
  // The place that the start has, or would have, in the folder of checkpoints `root`.
  std::optional<storage::CheckpointRef> place(const std::filesystem::path& root) const {
    if (!copy_) return saved_;
    return storage::CheckpointRef{root / storage::step_name(copy_->step), copy_->step};
  }

 private:
  std::optional<storage::CheckpointRef> saved_, copy_;
  std::string dir_;
};

}  // namespace mtrain::run
