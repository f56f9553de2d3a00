// Ends the ranks when their launcher dies, however it dies.
#pragma once
#include <sys/types.h>
#include <string>

namespace mtrain::launch {

// A process that waits until the launcher's end of a pipe is closed. Unless the launcher has said
// that its ranks have ended, the watchdog then kills all processes of the job: the ranks' process
// groups, and what has left these. The kernel itself would only kill the ranks, and not what a
// shell between launcher and rank started.
class Watchdog {
 public:
  // Starts it. Call it before other threads exist.
  explicit Watchdog(const std::string& job_id);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // A process group that it kills. Async-signal-safe, so that a rank can add itself before exec.
  void add_group(pid_t group) const { send(group); }
  void remove_group(pid_t group) const { send(-group); }  // its number may be used again
  void dismiss() const { send(0); }                       // all ranks have ended

 private:
  void send(pid_t word) const;

  int pipe_;
  pid_t pid_;
};

}  // namespace mtrain::launch
