// Catches the signals that ask a run to end early.
#pragma once

namespace mtrain::run {

// While it lives, the signals of launch/end_signals.h ask a run to finish its step, save and end.
// Signals within a second of the first, and what the launcher passes on, belong to the first. A
// later one ends the process at once.
class SignalGuard {
 public:
  SignalGuard();   // takes over these signals, but not a SIGHUP that nohup has turned off
  ~SignalGuard();  // restores the former handlers
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  int signal() const;  // the signal that came, or 0
};

}  // namespace mtrain::run
