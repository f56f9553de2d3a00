// Writes checkpoints as Hugging Face folders while training continues
// (checkpoint.save_consolidated).
#pragma once
#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "comm/host_collectives.h"

namespace mtrain::run {

// The Hugging Face form of a checkpoint is the folder `hf` inside the checkpoint's folder. It is
// renamed and deleted with it. Rank 0 makes it from the files of the finished checkpoint, as
// `mtrain export hf` does, in a separate thread: neither the other ranks nor the device wait for
// it. The folder appears only when it is complete. If the process dies before, the checkpoint stays
// complete, with a temporary folder in it. The next begin() for this checkpoint removes that
// folder. If the form cannot be written (the disk is full), this is only a warning, and later calls
// of begin() try again.
class ConsolidatedWriter {
 public:
  explicit ConsolidatedWriter(const comm::HostCollectives& control) : control_(control) {}
  ~ConsolidatedWriter();  // stops the writing in progress
  ConsolidatedWriter(const ConsolidatedWriter&) = delete;
  ConsolidatedWriter& operator=(const ConsolidatedWriter&) = delete;

  // Begins to write the form of a checkpoint that lacks it, and the forms of earlier calls that
  // could not be written, if their checkpoints still exist. Only rank 0 calls it, after finish().
  // `fault`, unless empty, is called before each piece, and begin() then waits for the end.
  void begin(const std::filesystem::path& checkpoint, const std::function<void()>& fault = {});

  // Waits until the writing has ended; nothing may change or delete the checkpoint before that. All
  // ranks must call it.
  void finish();

  // Returns a line for the log about the form that was completed since the last call; empty if
  // there is none. It does not wait. Forms that cannot be written have been reported as warnings.
  std::string take_note();

 private:
  bool writing() const;  // whether the thread is still running; waits for it briefly
  void take();           // takes the results of the thread

  // The results of the thread.
  struct Outcome {
    std::vector<std::string> lines;                // for the log
    std::vector<std::filesystem::path> unwritten;  // checkpoints that lack their form
  };

  const comm::HostCollectives& control_;
  std::atomic<bool> give_up_{false};
  std::future<Outcome> pending_;
  std::vector<std::filesystem::path> unwritten_;
  std::string note_;
};

}  // namespace mtrain::run
