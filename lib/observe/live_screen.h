// Shows a changing picture on the full terminal.
#pragma once
#include <csignal>

#include <chrono>
#include <string>
#include <string_view>

namespace mtrain::observe {

// Uses the terminal's alternate screen. At the end, also after a signal, it restores the normal
// screen and prints the last picture there. Signals are handled only in pause(). Only one object
// may exist at a time.
class LiveScreen {
 public:
  explicit LiveScreen(int fd);
  ~LiveScreen();
  LiveScreen(const LiveScreen&) = delete;
  LiveScreen& operator=(const LiveScreen&) = delete;

  // Shows the lines that fit on the terminal.
  void draw(std::string_view picture);
  // Waits for `time`, or until the terminal's size changes. Ends the process if a signal requests
  // it.
  void pause(std::chrono::milliseconds time);

 private:
  void enter() const;
  void leave() const;

  const int fd_;
  sigset_t before_{};
  std::string last_;
};

}  // namespace mtrain::observe
