// The file log.txt of a run folder.
#pragma once
#include <filesystem>

namespace mtrain::run {

// While a RunLog exists, the record of the log is written to the file, including the lines that
// were printed before. Each start appends, and begins with the time. Only the owner of the folder
// may have one.
class RunLog {
 public:
  explicit RunLog(const std::filesystem::path& run_dir);  // throws RunError
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  static std::filesystem::path path(const std::filesystem::path& run_dir);
};

}  // namespace mtrain::run
