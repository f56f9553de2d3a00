#include "storage/damaged_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <vector>

#include "base/file.h"
#include "storage/checkpoint_index.h"
#include "storage/manifest.h"
#include "storage/temporary_checkpoint.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDamaged = ".damaged";

// The pages of a file in memory may be what is wrong.
void forget_cached_pages(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

}  // namespace

bool is_damaged_again(const fs::path& file, int64_t block) {
  forget_cached_pages(file);
  const fs::path folder = file.parent_path();
  try {
    if (block < 0) {
      complete_checkpoint(folder);
      if (file.filename() == kIndexJson) read_index(folder, read_manifest(folder));
      return false;
    }
    const FileSums sums(file,
                        checked_sums(folder, read_manifest(folder), file.filename().string()));
    if (block >= sums.blocks()) return false;
    const RandomAccessFile again = open_saved(file);
    std::vector<std::byte> content(size_t(sums.size_of(block)));
    again.read(block * kSumsBlock, content.size(), content.data(), "the bytes");
    sums.check(block, content);
    return false;
  } catch (const DamagedFile&) {
    return true;
  }
}

fs::path free_name(const fs::path& path, const char* ending) {
  fs::path name = path;
  name += ending;
  std::error_code error;
  for (int n = 2; fs::exists(fs::symlink_status(name, error)); ++n)
    name = fmt::format("{}{}-{}", path.string(), ending, n);
  return name;
}

fs::path set_aside_damaged(const fs::path& checkpoint) {
  const fs::path to = free_name(checkpoint, kDamaged);
  std::error_code error;
  fs::rename(checkpoint, to, error);
  if (error)
    throw RunError(fmt::format("cannot rename {} to {}: {}", checkpoint.string(), to.string(),
                               error.message()),
                   "rename or repair the damaged checkpoint, then continue with "
                   "checkpoint.load=latest");
  sync_directory(checkpoint.parent_path());
  return to;
}

bool is_set_aside(const std::string& name) {
  const auto at = name.find(kDamaged);
  return at != std::string::npos && parse_step(name.substr(0, at)) >= 0;
}

bool has_damaged(const fs::path& root) {
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error))
    if (is_set_aside(it->path().filename().string())) return true;
  return false;
}

}  // namespace mtrain::storage
