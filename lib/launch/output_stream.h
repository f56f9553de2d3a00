// A stream of the launcher, such as its stdout, that never makes the launcher wait.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace mtrain::launch {

// Text that waits to be written. Above a bound the oldest complete lines are dropped, and a line
// with their number replaces them. A progress line ends with a carriage return.
class PendingText {
 public:
  explicit PendingText(size_t max_bytes) : max_bytes_(max_bytes) {}
  void add(std::string_view text);
  bool empty() const { return text_.empty(); }
  std::string take(size_t bytes);  // removes at most `bytes` from the beginning, plus that line

 private:
  void drop();

  const size_t max_bytes_;
  std::string text_;
  bool within_line_ = false;  // the last take() ended within a line
  size_t dropped_ = 0;        // lines, after the first kept_ bytes
  size_t kept_ = 0;
};

// Writes to a file descriptor in a thread of its own: the descriptor may be a terminal that Ctrl-S
// has stopped, or a pipe to a paused pager. If the reader is gone, only the output ends.
class OutputStream {
 public:
  explicit OutputStream(int fd);
  ~OutputStream();  // does not wait for pending text
  OutputStream(const OutputStream&) = delete;
  OutputStream& operator=(const OutputStream&) = delete;

  void write(std::string_view text);
  std::string fit(std::string_view text) const;  // wraps it if this is a terminal
  // Waits until everything is written, nobody has read for `patience`, or give_up() returns true.
  void finish(std::chrono::milliseconds patience, const std::function<bool()>& give_up);

 private:
  struct State;
  static void write_all(const std::shared_ptr<State>& state);
  const std::shared_ptr<State> state_;  // the thread may outlive this object
};

}  // namespace mtrain::launch
