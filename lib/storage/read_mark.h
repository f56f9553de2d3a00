// Marks a checkpoint that a program reads, so that no run deletes it meanwhile.
#pragma once
#include <filesystem>

namespace mtrain::storage {

// Holds a shared lock on the checkpoint's state.json while it lives. The kernel frees it when the
// process ends. It has no effect where the file cannot be opened, or where the file system has no
// locks.
class ReadMark {
 public:
  explicit ReadMark(const std::filesystem::path& checkpoint);
  ~ReadMark();
  ReadMark(const ReadMark&) = delete;
  ReadMark& operator=(const ReadMark&) = delete;

 private:
  int fd_;
};

// Whether a program holds a mark of this checkpoint.
bool is_being_read(const std::filesystem::path& checkpoint);

}  // namespace mtrain::storage
