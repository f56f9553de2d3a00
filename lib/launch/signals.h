// The signals that reach the launcher.
#pragma once
#include <chrono>
#include <csignal>

#include "base/ignore_sigpipe.h"

namespace mtrain::launch {

// Decides which signals belong to the first request to end, and which are a second request.
class EndRequests {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Kind {
    first,   // save and end
    repeat,  // belongs to the first: nothing more to do
    second   // end immediately
  };
  // `from_keyboard`: a person has pressed a key.
  Kind add(int signal, Clock::time_point at, bool from_keyboard = false);
  // Another launcher of the job got the signal. This one may get the same request later: its first
  // own signal is a repeat. Returns first or repeat.
  Kind add_of_other(int signal, Clock::time_point at);
  int signal() const { return signal_; }  // of the first request; 0: none has come

 private:
  int signal_ = 0;
  bool of_other_ = false;  // until an own signal comes
  Clock::time_point first_, last_;
};

// While it lives, the signals that the launcher handles arrive at a file descriptor.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_; }
  const sigset_t& before() const { return before_; }  // the mask with which children start
  // Returns the next signal, except SIGCHLD; 0: none has arrived.
  int next();
  bool from_keyboard() const { return from_keyboard_; }  // whether a key has caused that signal

 private:
  const IgnoreSigpipe pipes_;  // a reader that is gone (`| tee log`) must not end the ranks
  sigset_t before_;
  int fd_;
  bool from_keyboard_ = false;
};

}  // namespace mtrain::launch
