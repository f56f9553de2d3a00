// Checksums of a file, in the text file `<file>.sums` beside it. The first line is
// "xxh3-128 <block size> <size of the file>". A line follows for each block of 4 MiB with its
// XXH3-128 in hexadecimal digits. The last block may be shorter. An empty file has no blocks.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/file.h"

namespace mtrain::storage {

inline constexpr int64_t kSumsBlock = 4ll << 20;  // bytes

std::filesystem::path sums_path(const std::filesystem::path& file);
// Whether the text of a .sums file begins like mtrain's. Other programs use the extension, too.
bool is_sums_text(std::string_view text);

// Returns the content of a .sums file: `lines` has a line for each block.
std::string sums_text(int64_t bytes, std::string_view lines);

// Computes the checksums of bytes that are added piece by piece.
class SumsBuilder {
 public:
  void add(const void* data, size_t bytes);
  std::string text();  // the content of the .sums file; ends the last block

 private:
  void end_block();

  ContentHash block_;
  int64_t in_block_ = 0, bytes_ = 0;
  std::string lines_;
};

// Reads the file and returns the content of its .sums file. Throws as RandomAccessFile does.
std::string make_sums(const std::filesystem::path& file);

// The checksums of a file, from its .sums file.
class FileSums {
 public:
  // Throws RunError, which names the .sums file, if the text has another format.
  FileSums(std::filesystem::path file, std::string_view text);

  int64_t bytes() const { return bytes_; }
  int64_t blocks() const { return int64_t(blocks_.size()); }
  // Bytes of a block.
  int64_t size_of(int64_t block) const;
  // Throws DamagedFile, which names the bytes, unless this is the content of the block.
  void check(int64_t block, std::span<const std::byte> content) const;
  // Reads the full file and checks it. Throws DamagedFile, also if its size differs; RunError if it
  // cannot be read.
  void check_file() const;

 private:
  std::filesystem::path file_;
  int64_t bytes_ = 0;
  std::vector<std::string> blocks_;
};

// A checkpoint's file differs from what was saved. Errors of the system, such as missing rights or
// a failing disk, and missing files are other RunErrors: they do not show that the content is
// wrong.
class DamagedFile : public RunError {
 public:
  DamagedFile(std::filesystem::path file, int64_t block, const std::string& message,
              const std::string& hint)
      : RunError(message, hint), file_(std::move(file)), block_(block) {}
  const std::filesystem::path& file() const { return file_; }
  int64_t block() const { return block_; }  // whose checksum differs; -1: another fault

 private:
  std::filesystem::path file_;
  int64_t block_;
};

// These return the error for a checkpoint's file that differs from what was saved, and for one that
// is missing.
DamagedFile damaged_file(const std::filesystem::path& file, const std::string& what,
                         int64_t block = -1);
RunError missing_file(const std::filesystem::path& file);

// These open or read a file of a checkpoint. Throw RunError if it cannot be read.
RandomAccessFile open_saved(const std::filesystem::path& file);
std::string read_saved(const std::filesystem::path& file);

}  // namespace mtrain::storage
