#include "checkpoint/read_faults.h"

#include <algorithm>
#include <charconv>

#include "base/strings.h"
#include "storage/damaged_checkpoint.h"

namespace mtrain::checkpoint {

void ReadFaults::attempt(const std::function<void()>& read) {
  if (damage_) return;
  try {
    read();
  } catch (const storage::DamagedFile& e) {
    damage_ = e;
  }
}

void ReadFaults::agree(const std::filesystem::path& folder) const {
  const std::string own =
      damage_ ? fmt::format("{}\n{}\n{}\n{}", damage_->block(), damage_->file().string(),
                            damage_->message(), damage_->hint())
              : "";
  const std::vector<std::string> all = control_.texts(own);
  const auto found = std::ranges::find_if(all, [](const auto& text) { return !text.empty(); });
  if (found == all.end()) return;
  const std::vector<std::string> lines = split(*found, '\n');
  MT_CHECK(lines.size() >= 4, "{}", *found);
  int64_t block = -1;
  std::from_chars(lines[0].data(), lines[0].data() + lines[0].size(), block);
  const storage::DamagedFile damage(lines[1], block, lines[2], lines[3]);
  throw storage::DamagedCheckpoint(folder, damage, damage.message(), damage.hint());
}

}  // namespace mtrain::checkpoint
