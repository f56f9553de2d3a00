#include "storage/free_space.h"

#include <sys/statvfs.h>

#include "base/error.h"
#include "base/strings.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

int64_t free_bytes(const fs::path& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0 || info.f_blocks == 0) return -1;
  return int64_t(info.f_bavail) * int64_t(info.f_frsize);
}

void require_space(const fs::path& folder, int64_t bytes) {
  // Headers with the tensors' names, checksums, the state and the recipe.
  constexpr int64_t kReserve = 1 << 20, kShare = 100;
  const int64_t needed = bytes + bytes / kShare + kReserve, free = free_bytes(folder);
  if (free < 0 || free >= needed) return;
  throw RunError(fmt::format("{} has {} of free space, and a checkpoint needs {}", folder.string(),
                             human_bytes(double(free)), human_bytes(double(needed))),
                 "free some space or set checkpoint.dir elsewhere; earlier checkpoints are intact");
}

}  // namespace mtrain::storage
