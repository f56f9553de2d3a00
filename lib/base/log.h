// Log lines on stderr. The progress line and metrics are in lib/observe.
#pragma once
#include <functional>
#include <string_view>

namespace mtrain::log {

void info(std::string_view message);
void warn(std::string_view message);
void error(std::string_view message);

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
