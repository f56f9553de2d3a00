// The file log.txt of a run folder.
#pragma once
#include <filesystem>

namespace mtrain::run {

// While it lives, the record of the log goes into the file: what was printed before, too. Each
// start appends, and begins with the time. Only the owner of the folder may have one.
class RunLog {
 public:
  explicit RunLog(const std::filesystem::path& run_dir);  // throws RunError
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  static std::filesystem::path path(const std::filesystem::path& run_dir);
};

}  // namespace mtrain::run
