// Log lines on stderr, and the record of a run's lines. The lines of steps and metrics are in
// lib/observe.
#pragma once
#include <functional>
#include <string_view>

namespace mtrain::log {

void info(std::string_view message);
void warn(std::string_view message);
void error(std::string_view message);

// Adds whole lines to the record alone. The functions above add what they print, too.
void record(std::string_view lines);
// Sets where the record goes; null ends it. The lines of before come first, up to a bound. The
// function may be called by several threads, and must not throw.
void set_record(std::function<void(std::string_view lines)> write);

// Something that is drawn below the log on the same terminal: the progress line.
class Overlay {
 public:
  virtual ~Overlay() = default;
  // Clears what is drawn, calls write_line(), and draws it again; nothing else is drawn meanwhile.
  virtual void interrupt(const std::function<void()>& write_line) = 0;
};
// Sets the overlay; null removes it. When this returns, the previous overlay is no longer called.
void set_overlay(Overlay* overlay);

}  // namespace mtrain::log
