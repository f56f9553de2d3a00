// A file that receives a rank's output.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace mtrain::launch {

// The output is unchanged. A full file is renamed to <name>.1, and earlier ones get the next
// numbers, so a job that prints for weeks does not fill its disk.
class LogFile {
 public:
  static constexpr int64_t kMostBytes = int64_t(64) << 20;  // of a file, up to the end of a line
  static constexpr int kFiles = 5;  // that are kept, the current one included

  // The folder exists, and the file does not. Throws UserError.
  explicit LogFile(std::filesystem::path path, int64_t most_bytes = kMostBytes);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
  // Returns why it could not be written; empty if it was, or if an earlier call has reported it.
  std::string write(std::string_view text);

 private:
  std::string write_all(std::string_view text);
  std::string rotate();
  std::string give_up(int error);

  const std::filesystem::path path_;
  const int64_t most_bytes_;
  int64_t bytes_ = 0;
  int fd_;
};

}  // namespace mtrain::launch
