// Handles the signals that request an early end of a run.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace mtrain::run {

// While a SignalGuard exists, the signals of launch/end_signals.h request that a run finishes its
// step, saves and ends. Signals within a second of the first, signals that the launcher forwards,
// and repeated signals of a held key belong to the first. A later signal ends the process
// immediately.
class SignalGuard {
 public:
  // Handles these signals, but not a SIGHUP that nohup has turned off. `on_request`, which may be
  // empty, is called at the first signal, in a separate thread.
  explicit SignalGuard(std::function<void()> on_request = {});
  ~SignalGuard();  // restores the former handlers
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  int signal() const;  // the received signal, or 0; for a forwarded signal, the one that the
                       // launcher received
  // Sets the text about the loss that a second request prints: "steps 5 to 7 are not saved".
  void set_unsaved(std::string_view text);

 private:
  class Watcher;
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace mtrain::run
