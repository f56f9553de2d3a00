// Log lines on stderr, and the record of a run's lines. lib/observe writes the lines of steps and
// metrics.
#pragma once
#include <functional>
#include <string_view>

namespace mtrain::log {

void info(std::string_view message);
void warn(std::string_view message);
void error(std::string_view message);

// Adds complete lines only to the record. The functions above also add the lines that they print.
void record(std::string_view lines);
// Sets the function that writes the record; null ends the record. It first gets the earlier lines,
// up to a limit. Several threads may call it, and it must not throw.
void set_record(std::function<void(std::string_view lines)> write);

// Text that is drawn below the log on the same terminal: the progress line.
class Overlay {
 public:
  virtual ~Overlay() = default;
  // Clears the drawn text, calls write_line(), and draws the text again; nothing else is drawn
  // meanwhile.
  virtual void interrupt(const std::function<void()>& write_line) = 0;
};
// Sets the overlay; null removes it. When this returns, the previous overlay is no longer called.
void set_overlay(Overlay* overlay);

}  // namespace mtrain::log
