#include "base/cache_folder.h"

#include <cstdlib>

namespace mtrain {

std::optional<std::filesystem::path> cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value ? value : "");
  };
  // The XDG standard requires that relative paths in XDG_CACHE_HOME are ignored.
  std::filesystem::path cache = variable("XDG_CACHE_HOME");
  if (!cache.is_absolute()) {
    const std::filesystem::path home = variable("HOME");
    if (!home.is_absolute()) return std::nullopt;
    cache = home / ".cache";
  }
  return cache / "mtrain";
}

}  // namespace mtrain
