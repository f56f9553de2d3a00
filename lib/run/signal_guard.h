// The signals that a run survives.
#pragma once

namespace mtrain::run {

// While it lives, SIGINT, SIGTERM and SIGHUP (the terminal is gone) ask a run to finish its step,
// save and end well; a second one ends the process at once.
class SignalGuard {
 public:
  SignalGuard();   // takes over these signals; SIGHUP only where nohup has not turned it off
  ~SignalGuard();  // gives them back
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  int signal() const;  // the one received, 0 before
};

}  // namespace mtrain::run
