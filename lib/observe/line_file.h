// A file of complete lines, to which a run appends.
#pragma once
#include <filesystem>
#include <string_view>

namespace mtrain::observe {

class LineFile {
 public:
  // Opens `path` to append to it. Throws RunError, with a hint about train.run_dir.
  explicit LineFile(std::filesystem::path path);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // Appends complete lines by a single system call. On a full disk, lines are lost and one warning
  // is logged, but the training continues. The file has only complete lines.
  void append(std::string_view lines);

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  bool warned_ = false;
};

}  // namespace mtrain::observe
