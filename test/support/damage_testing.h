// Damages a checkpoint's files, or changes them as if they had been saved with the change.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include "storage/checkpoint_index.h"

namespace mtrain {

// Flips a bit of a file while it lives.
class FlippedBit {
 public:
  FlippedBit(const std::filesystem::path& file, int64_t byte, int bit)
      : fd_(::open(file.c_str(), O_RDWR | O_CLOEXEC)), byte_(byte), mask_(uint8_t(1u << bit)) {
    flip();
  }
  ~FlippedBit() {
    flip();
    ::close(fd_);
  }
  FlippedBit(const FlippedBit&) = delete;
  FlippedBit& operator=(const FlippedBit&) = delete;

 private:
  void flip() const {
    uint8_t value = 0;
    bool done = ::pread(fd_, &value, 1, byte_) == 1;
    value ^= mask_;
    done = done && ::pwrite(fd_, &value, 1, byte_) == 1;
    if (!done) throw std::runtime_error("cannot flip a bit");
  }

  int fd_;
  int64_t byte_;
  uint8_t mask_;
};

// Removes the checksums in the folder.
inline void remove_sums(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> sums;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".sums") sums.push_back(entry.path());
  for (const auto& file : sums) std::filesystem::remove(file);
}

// Makes a sound checkpoint of the folder's files, as if a test's changes had been saved.
inline void seal_again(const std::filesystem::path& folder, int64_t step) {
  if (std::filesystem::exists(folder / storage::kIndexJson)) {
    const storage::CheckpointIndex index = read_index(folder, storage::read_manifest(folder));
    remove_sums(folder);
    return write_index(folder, step, index, {});
  }
  remove_sums(folder);
  std::filesystem::remove(folder / storage::kManifest);
  storage::write_manifest(folder, step);
}

}  // namespace mtrain
