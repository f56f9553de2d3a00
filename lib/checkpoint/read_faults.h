// Lets ranks that find damage in a checkpoint agree about it.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>

#include "comm/host_collectives.h"
#include "storage/file_sums.h"

namespace mtrain::checkpoint {

// A rank reads its own part of a checkpoint, so perhaps it alone meets a damaged block. It then
// skips what is left to read, and takes part in all communication until the ranks agree.
class ReadFaults {
 public:
  explicit ReadFaults(const comm::HostCollectives& control) : control_(control) {}

  // Runs `read`, which must not communicate, unless this rank has found damage before. Keeps a
  // DamagedFile that it throws; other errors leave it.
  void attempt(const std::function<void()>& read);

  // Throws storage::DamagedCheckpoint on all ranks, with the damage of the first rank that found
  // any. All ranks must call it.
  void agree(const std::filesystem::path& folder) const;

 private:
  const comm::HostCollectives& control_;
  std::optional<storage::DamagedFile> damage_;
};

}  // namespace mtrain::checkpoint
