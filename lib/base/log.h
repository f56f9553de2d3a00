// Log lines for people, on stderr. The progress line and metrics live in lib/observe.
#pragma once
#include <functional>
#include <string_view>

namespace mtrain::log {

void info(std::string_view message);
void warn(std::string_view message);
void error(std::string_view message);

// What is drawn below the log on the same terminal: the progress line.
class Overlay {
 public:
  virtual ~Overlay() = default;
  // Clears what is drawn, calls `write_line`, draws again; meanwhile nothing else is drawn.
  virtual void interrupt(const std::function<void()>& write_line) = 0;
};
// null: none. When it returns, the overlay of before is no longer called.
void set_overlay(Overlay* overlay);

}  // namespace mtrain::log
