// Identities of hosts and processes, for peers that share memory and watch over each other.
#pragma once
#include <sys/types.h>
#include <string>

namespace mtrain::comm {

// Returns a text that is equal for processes that can open each other's memory: those of one
// machine, one boot and one pid namespace.
std::string host_identity();

// A process, safe against the reuse of its pid.
struct ProcessIdentity {
  pid_t pid = 0;
  std::string started;  // clock ticks after boot, as the kernel says it

  static ProcessIdentity own();
  std::string text() const;  // parse() reads it back
  static ProcessIdentity parse(const std::string& text);
  bool ended() const;  // true also for a zombie that nobody has waited for yet
};

}  // namespace mtrain::comm
