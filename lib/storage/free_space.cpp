#include "storage/free_space.h"

#include "base/disk_space.h"
#include "base/error.h"
#include "base/strings.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

void require_space(const fs::path& folder, int64_t bytes) {
  // Headers with the tensors' names, checksums, the state and the recipe.
  constexpr int64_t kReserve = 1 << 20, kShare = 100;
  const int64_t needed = bytes + bytes / kShare + kReserve, free = free_disk_bytes(folder);
  if (free < 0 || free >= needed) return;
  throw RunError(fmt::format("{} has {} of free space, and a checkpoint needs {}", folder.string(),
                             human_bytes(double(free)), human_bytes(double(needed))),
                 "free some space or set checkpoint.dir elsewhere; earlier checkpoints are intact");
}

}  // namespace mtrain::storage
