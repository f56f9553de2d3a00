// A guard for programs that write to pipes and sockets whose readers may be gone.
#pragma once

namespace mtrain {

// While it lives, such a write (`| tee log`, killed; a peer that has ended) is an error of that
// write, not the end of the process. The signal belongs to the whole process: programs and runs
// hold this, libraries do not.
class IgnoreSigpipe {
 public:
  IgnoreSigpipe();
  ~IgnoreSigpipe();
  IgnoreSigpipe(const IgnoreSigpipe&) = delete;
  IgnoreSigpipe& operator=(const IgnoreSigpipe&) = delete;

 private:
  void (*before_)(int);
};

// Whether a write without a reader would end this process.
bool sigpipe_is_deadly();

}  // namespace mtrain
