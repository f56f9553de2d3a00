// Writes checkpoints for transformers (checkpoint.save_consolidated).
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/pulse.h"
#include "checkpoint/added_files.h"
#include "comm/host_collectives.h"
#include "interchange/export.h"
#include "storage/new_folder.h"

namespace mtrain::run {

// The Hugging Face form of a checkpoint is the folder storage::kConsolidated inside the
// checkpoint's folder. It is renamed and deleted with it. All ranks make it from the checkpoint's
// files: each writes some of the files that `mtrain export hf` would write, into a temporary folder
// that is renamed when it is complete. If it cannot be written (the disk is full), this is only a
// warning, and later calls of complete() try again. All ranks make one object, and no two calls
// overlap.
class ConsolidatedWriter {
 public:
  // The pulse, if there is one, shows that this rank writes.
  explicit ConsolidatedWriter(const comm::HostCollectives& control,
                              std::shared_ptr<Pulse> pulse = {})
      : control_(control), pulse_(std::move(pulse)) {}

  // Returns the steps that write the form of a checkpoint before its commit. If the process dies,
  // the checkpoint does not exist either. `fault`, unless empty, is called on this rank before each
  // piece.
  checkpoint::AddedFiles files(std::function<void()> fault = {});

  // Reports where the checkpoint is now whose form these steps have written, or could not write.
  // Rank 0 passes the path.
  void committed(const std::filesystem::path& checkpoint);

  // Writes the form of a committed checkpoint that lacks it, and forms that could not be written
  // earlier, if their checkpoints still exist. Rank 0 passes the path, which may be empty. A kill
  // leaves the checkpoint complete, with a temporary folder in it, which the next call for this
  // checkpoint removes. All ranks must call it, and wait.
  void complete(const std::filesystem::path& checkpoint);

  // Returns lines for the log about the forms that were completed since the last call; empty if
  // there are none.
  std::string take_note();

 private:
  std::string begin(const std::filesystem::path& checkpoint);
  void write(const std::filesystem::path& checkpoint, const std::string& text,
             const std::function<void()>& before_piece);
  void end();
  void failed(const std::string& error);

  const comm::HostCollectives& control_;
  const std::shared_ptr<Pulse> pulse_;
  std::optional<interchange::Exported> exported_;  // what this rank has written a part of
  // On rank 0:
  std::filesystem::path output_;  // of the form that is being written
  std::optional<storage::NewFolder> folder_;
  std::string written_;  // a description of the form that the last steps have written; or empty
  std::vector<std::filesystem::path> unwritten_;  // checkpoints that lack their form
  std::string note_;
};

}  // namespace mtrain::run
