// Catches the signals that ask a run to end early.
#pragma once

namespace mtrain::run {

// While it lives, SIGINT, SIGTERM and SIGHUP (the terminal is gone) ask a run to finish its step,
// save and end. A second signal, more than a second later, ends the process at once.
class SignalGuard {
 public:
  SignalGuard();   // takes over these signals, but not a SIGHUP that nohup has turned off
  ~SignalGuard();  // restores the former handlers
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  int signal() const;  // the signal that came, or 0
};

}  // namespace mtrain::run
