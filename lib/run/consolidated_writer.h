// Writes checkpoints as Hugging Face folders while a training goes on
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

// The Hugging Face form of a checkpoint is the folder `hf` in the checkpoint's own, with which it
// is renamed and deleted. Rank 0 makes it from the files of the finished checkpoint, as `mtrain
// export hf` does, on a thread of its own: neither the other ranks nor the device wait for it. The
// folder appears whole. A process that dies before leaves the checkpoint complete, and a temporary
// folder in it, which the next begin() for this checkpoint removes. So does a form that cannot be
// written (the disk is full): that is a warning, and later calls of begin() write it again.
class ConsolidatedWriter {
 public:
  explicit ConsolidatedWriter(const comm::HostCollectives& control) : control_(control) {}
  ~ConsolidatedWriter();  // gives up what is being written
  ConsolidatedWriter(const ConsolidatedWriter&) = delete;
  ConsolidatedWriter& operator=(const ConsolidatedWriter&) = delete;

  // Begins to write the form of a checkpoint that lacks it, and those of earlier calls that could
  // not be written, if their checkpoints are still there. Rank 0 alone calls it, after finish().
  // `fault`, unless empty, is called before each piece, and begin() then waits for the end.
  void begin(const std::filesystem::path& checkpoint, const std::function<void()>& fault = {});

  // Waits until what was begun has ended; nothing else may change or delete the checkpoint before.
  // All ranks call it.
  void finish();

  // Returns a line for the log about the form that is complete since the last call; empty if there
  // is none. It does not wait. A form that cannot be written has been a warning.
  std::string take_note();

 private:
  bool writing() const;  // whether the end of the thread is still to come
  void take();           // what the thread has returned

  // What the thread has done.
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
