// Files that all ranks add to a checkpoint before it is committed, such as its form for
// transformers. They are made of the checkpoint's other files. If they cannot be written, the
// checkpoint is complete without them.
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "comm/host_collectives.h"

namespace mtrain::checkpoint {

// The steps that write such files. They run in the thread of the save, and use neither the device
// nor collectives. All but failed() throw errors of files.
struct AddedFiles {
  // On rank 0, before any rank writes. Decides what is written, and returns it as a text for all
  // ranks.
  std::function<std::string(const std::filesystem::path& checkpoint)> begin;
  // On each rank, with that text. Calls `meanwhile` from time to time; it may throw.
  std::function<void(const std::filesystem::path& checkpoint, const std::string& text,
                     const std::function<void()>& meanwhile)>
      write;
  // On rank 0, when all ranks have written.
  std::function<void()> end;
  // On rank 0, instead of the steps that are left. `error` names the rank that has failed.
  std::function<void(const std::string& error)> failed;
  explicit operator bool() const { return bool(begin); }
};

// Runs these steps while all ranks wait. All ranks must call it.
void add_files(const comm::HostCollectives& control, const std::filesystem::path& checkpoint,
               const AddedFiles& files);

}  // namespace mtrain::checkpoint
