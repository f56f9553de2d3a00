// Writes checkpoints for transformers (checkpoint.save_consolidated).
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "comm/host_collectives.h"

namespace mtrain::run {

// The Hugging Face form of a checkpoint is the folder storage::kConsolidated inside the
// checkpoint's folder. It is renamed and deleted with it. All ranks make it from the checkpoint's
// files: each writes some of the files that `mtrain export hf` would write. The folder is complete
// or absent. If it cannot be written (the disk is full), this is only a warning, and later calls of
// complete() try again. All ranks must make all calls.
class ConsolidatedWriter {
 public:
  explicit ConsolidatedWriter(const comm::HostCollectives& control) : control_(control) {}

  // Writes the form of a checkpoint that is not committed yet, whose files are in `folder`. If the
  // process dies, the checkpoint is not there either. `fault`, unless empty, is called on this rank
  // before each piece.
  void write(const std::filesystem::path& folder, const std::function<void()>& fault = {});

  // Reports where the checkpoint of the last write() is now. Rank 0 passes the path.
  void committed(const std::filesystem::path& checkpoint);

  // Writes the form of a committed checkpoint that lacks it, and forms that could not be written
  // earlier, if their checkpoints still exist. Rank 0 passes the path, which may be empty. A kill
  // leaves the checkpoint complete, with a temporary folder in it, which the next call for this
  // checkpoint removes.
  void complete(const std::filesystem::path& checkpoint);

  // Returns lines for the log about the forms that were completed since the last call; empty if
  // there are none.
  std::string take_note();

 private:
  // Writes into `folder`, and calls `finish` on rank 0. Returns a description of the form; empty if
  // a rank could not write.
  std::string write_into(const std::filesystem::path& checkpoint,
                         const std::filesystem::path& folder, const std::function<void()>& fault,
                         const std::function<void()>& finish);
  void add_note(const std::filesystem::path& folder, const std::string& what);

  const comm::HostCollectives& control_;
  std::vector<std::filesystem::path> unwritten_;  // on rank 0: checkpoints that lack their form
  std::string written_;                           // what write() has written; empty: nothing
  std::string note_;
};

}  // namespace mtrain::run
