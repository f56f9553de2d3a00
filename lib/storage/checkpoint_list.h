// Lists what a folder of checkpoints holds, for people.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mtrain::storage {

struct ListedCheckpoint {
  // complete: all files have their sizes, and the small ones their content; tensors are not read.
  // unreadable: the system cannot read it, or a file is missing. set_aside: a run has renamed it.
  enum class State { complete, damaged, unreadable, set_aside, temporary };

  std::filesystem::path path;
  int64_t step = 0;
  State state = State::complete;
  std::string fault = {};  // of a damaged or unreadable one
  int64_t saved_at = 0;    // seconds since 1970, when its newest file was written
  int64_t bytes = 0;       // of all its files
  std::optional<double> validation_loss = {};
  bool latest = false, best = false;  // whether `latest` or `best` names it
};

// Returns everything in `root` that is named as a checkpoint, in the order of steps. Temporary
// folders and those set aside come after the checkpoint of their step. Throws RunError if the
// folder cannot be listed.
std::vector<ListedCheckpoint> listed_checkpoints(const std::filesystem::path& root);

}  // namespace mtrain::storage
