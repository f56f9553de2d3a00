// Files that are either complete or absent. Errors contain the path and the system's reason.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace mtrain {

// Writes to a temporary file in the folder of `path`; commit() syncs it and renames it to `path`.
// Without commit() the temporary file is removed, and an older file at `path` stays unchanged.
// Throws RunError (disk full, permission, ...).
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void prepare();  // syncs and closes: in commit() only the renaming can then fail
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  bool done_ = false;
};

// Removes temporary files of `path` whose processes on this host no longer exist.
void remove_stale_temporaries(const std::filesystem::path& path);

const std::string& host_name();
// Whether a process with this pid runs on this host. One that has ended does not, though its parent
// may not have waited for it yet.
bool process_lives(int64_t pid);

void write_file_atomic(const std::filesystem::path& path, std::string_view content);
// The largest file that read_file() reads.
constexpr int64_t kLargestText = int64_t{1} << 27;
// Throws UserError when the file cannot be read.
std::string read_file(const std::filesystem::path& path);
// Makes renames inside the folder durable.
void sync_directory(const std::filesystem::path& path);
// Makes all files and folders in the folder durable, at any depth, and the folder itself.
void sync_tree(const std::filesystem::path& folder);

// A regular file that is read at any offset; several threads may read at once. Throws UserError
// when the file cannot be opened.
class RandomAccessFile {
 public:
  explicit RandomAccessFile(std::filesystem::path path);
  ~RandomAccessFile();
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return size_; }  // bytes, when the file was opened
  // Reads `bytes` bytes at offset `at`. Throws RunError, which names `what` and the file, when the
  // disk fails or the file has been truncated.
  void read(int64_t at, size_t bytes, void* to, std::string_view what) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// A read-only memory mapping of a complete file. Throws UserError when the file cannot be opened.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mtrain
