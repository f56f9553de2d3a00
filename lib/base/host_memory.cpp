#include "base/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

namespace mtrain {

namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Returns a number that follows `key` at the start of a line; an empty key: the first number.
std::optional<int64_t> number_in(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const size_t at = line.find_first_not_of(" \t", key.size());
    int64_t value = 0;
    if (at == std::string::npos) continue;
    const auto [end, error] = std::from_chars(line.data() + at, line.data() + line.size(), value);
    if (error == std::errc()) return value;
  }
  return std::nullopt;
}

// The names of a control group's files, which differ between the two versions of the system.
struct GroupFiles {
  const char *mount, *controller;  // controller: in /proc/self/cgroup
  const char *limit, *usage, *inactive, *active;
};
constexpr GroupFiles kVersions[] = {
    {"sys/fs/cgroup", "", "memory.max", "memory.current", "inactive_file", "active_file"},
    {"sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file", "total_active_file"}};

// Returns the process's group of this version as a path below the mount.
std::optional<fs::path> own_group(const fs::path& root, const GroupFiles& v) {
  std::istringstream lines(text_of(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {  // "4:cpu,memory:/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find(std::string(",") + v.controller + ",") != std::string::npos)
      return fs::path(line.substr(second + 1)).relative_path();
  }
  return std::nullopt;
}

int64_t left_in_group(const fs::path& group, const GroupFiles& v) {
  const auto limit = number_in(text_of(group / v.limit), ""),
             usage = number_in(text_of(group / v.usage), "");
  if (!limit || !usage) return std::numeric_limits<int64_t>::max();  // "max": no limit
  const std::string stat = text_of(group / "memory.stat");
  const int64_t files = number_in(stat, std::string(v.inactive) + " ").value_or(0) +
                        number_in(stat, std::string(v.active) + " ").value_or(0);
  // The kernel reads the two at different moments, so that files may exceed the usage. "No limit"
  // is a number near the largest one, to which nothing may be added.
  const int64_t used = std::max<int64_t>(0, *usage - files);
  return std::max<int64_t>(0, *limit - used);
}

}  // namespace

int64_t available_host_memory(const fs::path& root) {
  constexpr int64_t kKilobyte = 1024;
  const auto host = number_in(text_of(root / "proc/meminfo"), "MemAvailable:");
  if (!host) return -1;
  int64_t bytes = *host * kKilobyte;
  for (const GroupFiles& v : kVersions) {
    const auto own = own_group(root, v);
    if (!own) continue;
    // In a container the path may be that of the host, and the mount the container's own group.
    for (fs::path group = *own;; group = group.parent_path()) {
      bytes = std::min(bytes, left_in_group(root / v.mount / group, v));
      if (group.empty()) break;
    }
  }
  return bytes;
}

}  // namespace mtrain
