#include "base/file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/error.h"

namespace mtrain {
namespace fs = std::filesystem;

namespace {
std::string reason() { return std::strerror(errno); }
std::string disk_hint() {
  return errno == ENOSPC || errno == EDQUOT ? "free some space or choose another folder; what was saved before is intact"
                                            : "";
}
}  // namespace

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  temporary_ = path_;
  temporary_ += ".tmp." + std::to_string(::getpid());
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0)
    throw RunError(fmt::format("cannot create {}: {}", temporary_.string(), reason()), disk_hint());
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw RunError(fmt::format("cannot write {}: {}", path_.string(), reason()), disk_hint());
    p += n;
    bytes -= size_t(n);
  }
}

void AtomicFile::commit() {
  MT_CHECK(fd_ >= 0, "commit() called twice");
  if (::fsync(fd_) != 0)
    throw RunError(fmt::format("cannot sync {}: {}", path_.string(), reason()), disk_hint());
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const std::string why = reason();
    ::unlink(temporary_.c_str());
    throw RunError(fmt::format("cannot finish {}: {}", path_.string(), why));
  }
  sync_directory(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

std::string read_file(const fs::path& path) {
  MappedFile file(path);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void sync_directory(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw RunError(fmt::format("cannot open folder {}: {}", path.string(), reason()));
  const int failed = ::fsync(fd);
  const std::string why = reason();
  ::close(fd);
  // Some file systems refuse to sync a folder; the rename is then as durable as they make it.
  if (failed && errno != EINVAL) throw RunError(fmt::format("cannot sync folder {}: {}", path.string(), why));
}

MappedFile::MappedFile(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw UserError(fmt::format("cannot open {}: {}", path.string(), reason()));
  struct stat info{};
  const bool ok = ::fstat(fd, &info) == 0 && !S_ISDIR(info.st_mode);
  if (!ok) {
    ::close(fd);
    throw UserError(fmt::format("{} is not a readable file", path.string()));
  }
  size_ = size_t(info.st_size);
  if (size_ > 0) {
    void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      const std::string why = reason();
      ::close(fd);
      throw UserError(fmt::format("cannot map {}: {}", path.string(), why));
    }
    data_ = static_cast<const std::byte*>(p);
  }
  ::close(fd);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace mtrain
