#include "storage/folder_measure.h"

#include <sys/stat.h>

#include <algorithm>

namespace mtrain::storage {

namespace fs = std::filesystem;

FolderMeasure measure_folder(const fs::path& folder) {
  FolderMeasure measure;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    measure.bytes += info.st_size;
    measure.newest = std::max(measure.newest, int64_t(info.st_mtim.tv_sec));
  }
  return measure;
}

}  // namespace mtrain::storage
