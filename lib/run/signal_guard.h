// Catches the signals that ask a run to end early.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace mtrain::run {

// While it lives, the signals of launch/end_signals.h ask a run to finish its step, save and end.
// Signals within a second of the first, and what the launcher passes on, belong to the first; so
// does a key that is held. A later one ends the process at once.
class SignalGuard {
 public:
  // Takes over these signals, but not a SIGHUP that nohup has turned off. `on_request`, which may
  // be empty, is called at the first one, in a thread of its own.
  explicit SignalGuard(std::function<void()> on_request = {});
  ~SignalGuard();  // restores the former handlers
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  int signal() const;  // the signal that came, or 0; as the launcher got it, where it passed one on
  // Sets what a second request says about what is lost: "steps 5 to 7 are not saved".
  void set_unsaved(std::string_view text);

 private:
  class Watcher;
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace mtrain::run
