// A guard for programs that write to pipes and sockets whose readers may have ended.
#pragma once

namespace mtrain {

// While an IgnoreSigpipe exists, a write without a reader (a killed `| tee log`, a peer that has
// ended) returns an error instead of ending the process. The signal's handling belongs to the
// process: programs and runs hold this guard, and libraries do not.
class IgnoreSigpipe {
 public:
  IgnoreSigpipe();
  ~IgnoreSigpipe();
  IgnoreSigpipe(const IgnoreSigpipe&) = delete;
  IgnoreSigpipe& operator=(const IgnoreSigpipe&) = delete;

 private:
  void (*before_)(int);
};

// Returns whether a write without a reader would end this process.
bool sigpipe_is_deadly();

}  // namespace mtrain
