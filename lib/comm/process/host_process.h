// Identities of hosts and processes. Peers use them to know whether they can share memory, and
// whether a peer's process has ended.
#pragma once
#include <sys/types.h>
#include <optional>
#include <string>

namespace mtrain::comm {

// Returns a text that is equal for processes that can open each other's memory: those of one
// machine, one boot and one pid namespace.
std::string host_identity();

// Identifies a process even after its pid has been reused.
struct ProcessIdentity {
  pid_t pid = 0;
  std::string started;  // clock ticks after boot, from /proc

  static ProcessIdentity own();
  std::string text() const;  // parse() reads it back
  // Returns nothing for any text that is not two numbers.
  static std::optional<ProcessIdentity> parse(const std::string& text);
  bool ended() const;  // true also for a zombie that nobody has waited for yet
};

}  // namespace mtrain::comm
