#include "comm/process/host_process.h"

#include <unistd.h>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "store/store_protocol.h"

namespace mtrain::comm {

namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct Stat {
  char state = 0;
  std::string started;
};

// Returns empty fields if there is no such process.
Stat stat_of(pid_t pid) {
  const std::string line = first_line(fmt::format("/proc/{}/stat", pid).c_str());
  // pid (name) state ...: the name may hold anything, parentheses too.
  const size_t end = line.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream fields(line.substr(end + 1));
  Stat s;
  fields >> s.state;
  constexpr int kState = 3, kStartTime = 22;  // numbers of the fields in proc(5)
  for (int i = kState; i < kStartTime; ++i) fields >> s.started;
  return s;
}

}  // namespace

std::string host_identity() {
  char name[256] = {}, space[256] = {};
  gethostname(name, sizeof name - 1);
  [[maybe_unused]] const auto n = readlink("/proc/self/ns/pid", space, sizeof space - 1);
  return fmt::format("{} {} {}", name, first_line("/proc/sys/kernel/random/boot_id"), space);
}

ProcessIdentity ProcessIdentity::own() { return {getpid(), stat_of(getpid()).started}; }

std::string ProcessIdentity::text() const { return fmt::format("{} {}", pid, started); }

std::optional<ProcessIdentity> ProcessIdentity::parse(const std::string& text) {
  const size_t space = text.find(' ');
  if (space == std::string::npos) return std::nullopt;
  const auto number = store::parse_number(std::string_view(text).substr(0, space));
  const std::string since = text.substr(space + 1);
  if (!number || *number < 1 || *number > std::numeric_limits<pid_t>::max() ||
      !store::parse_number(since))
    return std::nullopt;
  return ProcessIdentity{pid_t(*number), since};
}

bool ProcessIdentity::ended() const {
  const Stat s = stat_of(pid);
  return s.started != started || s.state == 'Z' || s.state == 'X';
}

}  // namespace mtrain::comm
