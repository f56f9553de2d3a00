// Files that are either complete or absent. Errors contain the path and the system's reason.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

namespace mtrain {

// A second descriptor of an open file, for reads and writes past the page cache (O_DIRECT). It is
// opened when it is needed first. Several threads may use it.
class DirectDescriptor {
 public:
  DirectDescriptor() = default;
  ~DirectDescriptor();
  DirectDescriptor(const DirectDescriptor&) = delete;
  DirectDescriptor& operator=(const DirectDescriptor&) = delete;

  // Returns -1 if the file system refuses it. `flags` are O_RDONLY or O_WRONLY.
  int of(int fd, int flags);
  // The file system has accepted the descriptor, but refuses to use it.
  void refuse() { refused_ = true; }

 private:
  std::once_flag once_;
  std::atomic<bool> refused_{false};
  int fd_ = -1;
};

// What survives a loss of power when a file has been committed.
enum class Durable {
  named,    // the file, by its name
  content,  // its bytes; its name when the caller has synced the folder
  later,    // nothing, until the caller has synced the folder by sync_tree()
};

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
  // Allocates space for this many bytes, which become the file's size. Throws if the disk is full.
  // Has no effect on file systems without such a request.
  void reserve(int64_t bytes);
  // Writes at an offset; several threads may write at once. Not to be mixed with write().
  void write_at(int64_t at, const std::byte* data, size_t bytes);
  // The same past the page cache, where the file system can. `at`, `bytes` and the address must be
  // multiples of kDirectAlignment (aligned_bytes.h).
  void write_block(int64_t at, const std::byte* data, size_t bytes);
  void prepare();  // syncs and closes: in commit() only the renaming can then fail
  void commit(Durable durable = Durable::named);

 private:
  void finish(bool sync);  // closes the file

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  DirectDescriptor direct_;
  bool done_ = false;
};

// Removes temporary files of `path` whose processes on this host no longer exist.
void remove_stale_temporaries(const std::filesystem::path& path);

const std::string& host_name();
// Whether a process with this pid runs on this host. One that has ended does not, though its parent
// may not have waited for it yet.
bool process_lives(int64_t pid);

void write_file_atomic(const std::filesystem::path& path, std::string_view content,
                       Durable durable = Durable::named);
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
  // The same past the page cache, where the file system can, which costs the processor a tenth of
  // the time. `at` and the address must be multiples of kDirectAlignment (aligned_bytes.h), and
  // `to` have room for `bytes` rounded up to one.
  void read_block(int64_t at, size_t bytes, std::byte* to, std::string_view what) const;
  // The same as read(). The system reads all of the bytes from the disk at once.
  void read_at_once(int64_t at, size_t bytes, std::byte* to, std::string_view what) const;

 private:
  bool read_directly(int64_t at, size_t bytes, std::byte* to) const;

  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_ = 0;
  mutable DirectDescriptor direct_;
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
