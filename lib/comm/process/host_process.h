// Who a process is on which host: for peers that share memory and watch over each other.
#pragma once
#include <sys/types.h>
#include <string>

namespace mtrain {

// Equal for processes that can open each other's memory: same machine, same boot, same pid
// namespace.
std::string host_identity();

// A process, safe against the reuse of its pid.
struct ProcessIdentity {
  pid_t pid = 0;
  std::string started;  // clock ticks after boot, as the kernel says it

  static ProcessIdentity own();
  std::string text() const;  // and back:
  static ProcessIdentity parse(const std::string& text);
  bool ended() const;  // gone, or a zombie that nobody has waited for yet
};

}  // namespace mtrain
