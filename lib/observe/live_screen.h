// Shows a picture that changes on the whole terminal.
#pragma once
#include <csignal>

#include <chrono>
#include <string>
#include <string_view>

namespace mtrain::observe {

// Uses the terminal's second screen. At the end, also that by a signal, the first one comes back
// with the last picture below what was there. Signals wait for pause(). Only one may live.
class LiveScreen {
 public:
  explicit LiveScreen(int fd);
  ~LiveScreen();
  LiveScreen(const LiveScreen&) = delete;
  LiveScreen& operator=(const LiveScreen&) = delete;

  // Shows lines; those that the terminal has no room for are not shown.
  void draw(std::string_view picture);
  // Waits so long, or until the terminal has another size. Ends the process if a signal asks for
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
