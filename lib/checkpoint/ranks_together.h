// Work that takes different times on different ranks, such as writing to a disk.
#pragma once
#include <chrono>
#include <functional>
#include <string>

#include "checkpoint/save_error.h"
#include "comm/host_collectives.h"

namespace mtrain::checkpoint {

// Disks may take longer than the timeout of communication. Ranks that still work, and those that
// wait for them, therefore meet about five times a second. A rank whose work ends earlier than the
// others' finds out at the next meeting. All ranks make one object, and call finish() once.
class Meetings {
 public:
  explicit Meetings(const comm::HostCollectives& control) : control_(control) {}
  void during_work();  // call it from time to time
  void finish();       // returns when the work of all ranks has ended
  // Runs `work` on another thread, which must not use the device, and meets the others meanwhile.
  void run(const std::function<void()>& work);

 private:
  const comm::HostCollectives& control_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Runs `work`, and throws errors of files as SaveErrors.
void with_save_errors(const std::function<void()>& work);

// The text in which a rank sends an error to others, and its reader. It is never empty.
std::string print_error(const SaveError& error);
SaveError parse_error(const std::string& text);
// Returns the error with the number of the rank that has sent the text.
SaveError error_of_rank(size_t rank, const std::string& text);

// Runs `work` on this rank, and returns when that of all ranks has ended. If a file cannot be
// written or read back on some ranks, all ranks throw the SaveError of the first of them, with its
// number; that of a job of one rank has none. After another error the caller aborts the world,
// which ends the others' wait. All ranks call it.
void all_together(const comm::HostCollectives& control,
                  const std::function<void(Meetings& meetings)>& work);

}  // namespace mtrain::checkpoint
