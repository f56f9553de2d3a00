// Ends the ranks when their launcher dies, however it dies.
#pragma once
#include <sys/types.h>
#include <string>

namespace mtrain::launch {

// A process that waits until the launcher's end of a pipe is closed. Unless the launcher has
// reported that its ranks have ended, the watchdog then kills all processes of the job: the ranks'
// process groups, and processes that have left these. The kernel would kill only the ranks, and not
// the processes that a shell between launcher and rank has started.
class Watchdog {
 public:
  // Starts it. Call it before other threads exist.
  explicit Watchdog(const std::string& job_id);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Adds a process group to kill. Async-signal-safe, since a rank adds itself before exec.
  void add_group(pid_t group) const { send(group); }
  void remove_group(pid_t group) const { send(-group); }  // call it before its number is reused
  void dismiss() const { send(0); }                       // all ranks have ended

 private:
  void send(pid_t word) const;

  int pipe_;
  pid_t pid_;
};

}  // namespace mtrain::launch
