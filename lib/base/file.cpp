#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "base/aligned_bytes.h"
#include "base/bus_errors.h"
#include "base/error.h"
#include "base/math.h"
#include "base/regular_file.h"

namespace mtrain {
namespace fs = std::filesystem;

namespace {
constexpr const char* kTemporary = ".tmp.";  // then <pid>.<n>.<host>

// Returns an error that names errno's reason. It must be called before anything else can change
// errno.
RunError run_error(const char* verb, const fs::path& path) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return RunError(
      fmt::format("cannot {} {}: {}", verb, path.string(), std::strerror(error)),
      full ? "free some space or choose another folder; what was saved before is intact" : "");
}
UserError user_error(const char* verb, const fs::path& path) {
  return UserError(fmt::format("cannot {} {}: {}", verb, path.string(), std::strerror(errno)));
}

}  // namespace

DirectDescriptor::~DirectDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int DirectDescriptor::of(int fd, int flags) {
  // The path may name another file by now. Without /proc there is no direct descriptor.
  std::call_once(once_, [&] {
    fd_ = ::open(fmt::format("/proc/self/fd/{}", fd).c_str(), flags | O_DIRECT | O_CLOEXEC);
  });
  return refused_ ? -1 : fd_;
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  static std::atomic<int> count{0};  // two writers of one path in a process must not share a file
  temporary_ = path_;
  temporary_ += fmt::format("{}{}.{}.{}", kTemporary, ::getpid(), count++, host_name());
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) throw run_error("create", path_);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!done_) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw run_error("write", path_);
    p += n;
    bytes -= size_t(n);
  }
}

void AtomicFile::reserve(int64_t bytes) {
  while (bytes > 0 && ::fallocate(fd_, 0, 0, off_t(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) throw run_error("write", path_);
    return;
  }
}

void AtomicFile::write_at(int64_t at, const std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, data, bytes, off_t(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw run_error("write", path_);
    data += n, at += n, bytes -= size_t(n);
  }
}

void AtomicFile::write_block(int64_t at, const std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const int direct = direct_.of(fd_, O_WRONLY);
    const ssize_t n = direct < 0 ? -1 : ::pwrite(direct, data, bytes, off_t(at));
    if (direct >= 0 && n < 0 && errno == EINTR) continue;
    const bool refused = errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS;
    if (direct >= 0 && n < 0 && !refused) throw run_error("write", path_);
    if (n < 0) direct_.refuse();
    // The rest is no longer aligned after a short write, as before the end of the space.
    if (n < 0 || n % kDirectAlignment != 0) {
      const auto written = size_t(std::max<ssize_t>(n, 0));
      return write_at(at + int64_t(written), data + written, bytes - written);
    }
    data += n, at += n, bytes -= size_t(n);
  }
}

void AtomicFile::prepare() {
  MT_CHECK(fd_ >= 0, "prepare() called twice");
  finish(true);
}

void AtomicFile::finish(bool sync) {
  if (sync && ::fsync(fd_) != 0) throw run_error("sync", path_);
  if (::close(std::exchange(fd_, -1)) != 0) throw run_error("finish", path_);
}

void AtomicFile::commit(Durable durable) {
  MT_CHECK(!done_, "commit() called twice");
  if (fd_ >= 0) finish(durable != Durable::later);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw run_error("finish", path_);
  done_ = true;
  if (durable != Durable::named) return;
  sync_directory(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

void remove_stale_temporaries(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string begin = path.filename().string() + kTemporary, end = "." + host_name();
  std::vector<fs::path> stale;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), last; !error && it != last; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(end)) continue;
    const int64_t pid = std::atoll(name.c_str() + begin.size());
    if (pid > 0 && pid != ::getpid() && !process_lives(pid)) stale.push_back(it->path());
  }
  for (const auto& file : stale) fs::remove_all(file, error);  // a folder of such a name, too
}

const std::string& host_name() {
  static const std::string name = [] {
    char text[256] = {};
    return ::gethostname(text, sizeof(text) - 1) == 0 && text[0] ? std::string(text) : "unknown";
  }();
  return name;
}

bool process_lives(int64_t pid) {
  if (::kill(pid_t(pid), 0) != 0 && errno == ESRCH) return false;
  // A process that has ended keeps its pid until its parent waits, which not every init does.
  std::ifstream in(fmt::format("/proc/{}/stat", pid));  // "7 (name) Z ..."
  std::string line;
  if (!std::getline(in, line)) return true;
  const size_t name_end = line.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= line.size() ||
         std::string_view("ZX").find(line[name_end + 2]) == std::string_view::npos;
}

void write_file_atomic(const fs::path& path, std::string_view content, Durable durable) {
  AtomicFile file(path);
  file.write(content);
  file.commit(durable);
}

std::string read_file(const fs::path& path) { return read_regular_file(path, kLargestText); }

namespace {

int open_to_sync(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw run_error("open", file);
  return fd;
}

// Asks for the writes of a file without waiting for them. Failures appear at the sync itself.
void begin_sync(const fs::path& file) {
  const int fd = open_to_sync(file);
  [[maybe_unused]] const int begun = ::sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
  ::close(fd);
}

}  // namespace

void sync_directory(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw run_error("open folder", path);
  const bool failed = ::fsync(fd) != 0;
  // Some file systems do not support the sync of a folder; how durable the rename is then depends
  // on them.
  const bool refused = failed && errno == EINVAL;
  const RunError error = run_error("sync folder", path);
  ::close(fd);
  if (failed && !refused) throw error;
}

void sync_tree(const fs::path& folder) {
  std::vector<fs::path> files, folders{folder};
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    if (it->is_directory()) folders.push_back(it->path());
    if (it->is_regular_file()) files.push_back(it->path());
  }
  if (error) throw RunError(fmt::format("cannot list {}: {}", folder.string(), error.message()));
  // A journal takes all files that have their blocks into one transaction, and each sync would wait
  // for one of its own.
  for (const fs::path& file : files) begin_sync(file);
  for (const fs::path& file : files) {
    const int fd = open_to_sync(file);
    const bool failed = ::fsync(fd) != 0;
    const RunError reason = run_error("sync", file);
    ::close(fd);
    if (failed) throw reason;
  }
  for (const fs::path& made : folders) sync_directory(made);
}

RandomAccessFile::RandomAccessFile(fs::path path) : path_(std::move(path)) {
  const RegularFile file = open_regular_file(path_);
  fd_ = file.fd, size_ = file.size;
}

RandomAccessFile::~RandomAccessFile() { ::close(fd_); }

void RandomAccessFile::read(int64_t at, size_t bytes, void* to, std::string_view what) const {
  const auto fail = [&](const std::string& reason, const char* hint) {
    return RunError(fmt::format("cannot read {} of {}: {}", what, path_.string(), reason), hint);
  };
  for (char* next = static_cast<char*>(to); bytes > 0;) {
    const ssize_t n = ::pread(fd_, next, bytes, off_t(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw fail(std::strerror(errno), "check the disk, or copy the file to another");
    if (n == 0)
      throw fail(fmt::format("it ends at byte {}, and had {} bytes when it was opened", at, size_),
                 "it was truncated while it was read: copy it again");
    next += n, at += n, bytes -= size_t(n);
  }
}

bool RandomAccessFile::read_directly(int64_t at, size_t bytes, std::byte* to) const {
  const int direct = direct_.of(fd_, O_RDONLY);
  if (direct < 0) return false;
  for (size_t done = 0; done < bytes;) {
    const auto rest = size_t(round_up(int64_t(bytes - done), kDirectAlignment));
    const ssize_t n = ::pread(direct, to + done, rest, off_t(at + int64_t(done)));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL) direct_.refuse();
    done += size_t(std::max<ssize_t>(n, 0));
    // read() repeats what fails, and reports it.
    if (n <= 0 || (done < bytes && n % kDirectAlignment != 0)) return false;
  }
  return true;
}

void RandomAccessFile::read_block(int64_t at, size_t bytes, std::byte* to,
                                  std::string_view what) const {
  if (!read_directly(at, bytes, to)) read_at_once(at, bytes, to, what);
}

void RandomAccessFile::read_at_once(int64_t at, size_t bytes, std::byte* to,
                                    std::string_view what) const {
  ::posix_fadvise(fd_, off_t(at), off_t(bytes), POSIX_FADV_WILLNEED);
  read(at, bytes, to, what);
}

MappedFile::MappedFile(const fs::path& path) {
  const auto [fd, size] = open_regular_file(path);
  size_ = size_t(size);
  if (size_ > 0) {
    void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      const UserError error = user_error("map", path);
      ::close(fd);
      throw error;
    }
    data_ = static_cast<const std::byte*>(p);
    remember_mapping(data_, size_, path);
  }
  ::close(fd);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (!data_) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace mtrain
