#include "storage/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/strings.h"
#include "storage/folder_lease.h"
#include "storage/new_folder.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

constexpr const char* kName = ".lock";
constexpr size_t kMaxBytes = 4096;  // of the file that are read

// The owner of a folder, as written in its file.
struct Owner {
  std::string kind;  // lock or lease
  std::string host, started, job;
  std::string pids;  // the namespace of process ids, since containers may share a host's name
  int64_t pid = 0;
  int attempt = 0;
};

std::string print(const Owner& o) {
  return fmt::format("kind {}\nhost {}\npid {}\npids {}\nstarted {}\njob {}\nattempt {}\n", o.kind,
                     o.host, o.pid, o.pids, o.started, o.job, o.attempt);
}

Owner parse_lock_owner(const std::string& text) {
  Owner o;
  for (std::string line : split(text, '\n')) {
    // Another program may have written the file, and its text is printed to a terminal.
    std::ranges::replace_if(
        line, [](char c) { return uint8_t(c) < ' ' || c == 127; }, '?');
    const size_t blank = std::min(line.find(' '), line.size());
    const std::string key = line.substr(0, blank),
                      value = line.substr(std::min(blank + 1, line.size()));
    if (key == "kind") o.kind = value;
    if (key == "host") o.host = value;
    if (key == "started") o.started = value;
    if (key == "job") o.job = value;
    if (key == "pids") o.pids = value;
    if (key == "pid") o.pid = std::atoll(value.c_str());
    if (key == "attempt") o.attempt = std::atoi(value.c_str());
  }
  return o;
}

std::string describe(const Owner& o) {
  if (o.host.empty()) return "by a run that is just starting";
  return fmt::format("by process {} on {} since {}{}", o.pid, o.host, o.started,
                     o.job.empty() ? fmt::format(" (attempt {})", o.attempt)
                                   : fmt::format(" (job {}, attempt {})", o.job, o.attempt));
}

std::string pid_namespace() {
  std::error_code error;
  return fs::read_symlink("/proc/self/ns/pid", error).string();
}

std::string read_text(int fd) {
  std::string text(kMaxBytes, '\0');
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  text.resize(n > 0 ? size_t(n) : 0);
  return text;
}

void write_text(int fd, const std::string& text, const fs::path& file) {
  if (::ftruncate(fd, 0) == 0 && ::pwrite(fd, text.data(), text.size(), 0) == ssize_t(text.size()))
    return;
  throw RunError(fmt::format("cannot write {}: {}", file.string(), std::strerror(errno)));
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// A lock belongs to the open file, not to the process: two runs in one process exclude each other,
// too.
int lock_file(int fd, int16_t type = F_WRLCK) {
  struct flock whole {};
  whole.l_type = type;
  whole.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_SETLK, &whole) == 0 ? 0 : errno;
}

bool lacks_locks(int error) {
  return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

std::chrono::nanoseconds mtime(const struct stat& info) {
  return std::chrono::seconds(info.st_mtim.tv_sec) + std::chrono::nanoseconds(info.st_mtim.tv_nsec);
}

// Whether the owner was a process of this host that has ended.
bool is_gone(const Owner& owner) {
  return owner.pid > 0 && owner.host == host_name() && owner.pids == pid_namespace() &&
         !process_lives(owner.pid);
}

}  // namespace

bool is_folder_held(const fs::path& folder) {
  const int fd = ::open((folder / kName).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  const bool locked = ::fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
  struct stat info {};
  ::fstat(fd, &info);
  const Owner owner = parse_lock_owner(read_text(fd));
  ::close(fd);
  if (locked || owner.kind != "lease") return locked;
  // An owner may be late, and clocks of hosts differ.
  const std::chrono::nanoseconds age =
      std::chrono::system_clock::now().time_since_epoch() - mtime(info);
  return !is_gone(owner) && age < 6 * FolderLockOptions{}.renew;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  char text[32] = {};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
  return text;
}

struct FolderLock::State {
  fs::path folder, file;
  FolderLockOptions options;
  Owner self;
  bool made_folder = false;
  std::atomic<bool> lease = false;

  mutable std::mutex mutex;  // guards all below
  std::condition_variable wake;
  int fd = -1;
  bool stop = false;
  std::string lost;  // why the folder is no longer ours; empty while it is

  std::thread renewer;

  UserError cannot_write(const std::string& reason) const;
  void make_folder();
  std::optional<Owner> try_take();
  std::optional<Owner> take_file(int opened, bool created);
  bool is_stale(int opened, const Owner& owner) const;
  void take_over(int opened) const;
  bool is_predecessor(const Owner& owner) const {
    return !options.job.empty() && owner.job == options.job && owner.attempt < options.attempt;
  }
  std::optional<bool> is_ours() const;
  void check();
  void renew();
  [[noreturn]] void refuse(const Owner& owner) const;
};

UserError FolderLock::State::cannot_write(const std::string& reason) const {
  return UserError(
      fmt::format("{}: {}", options.setting, reason),
      fmt::format("give a folder that can be written with {}=<folder>", options.setting));
}

void FolderLock::State::make_folder() {
  std::error_code error;
  made_folder = !fs::exists(folder, error);
  try {
    make_folders(folder);
  } catch (const RunError& e) {
    throw cannot_write(e.message());
  }
}

// Returns the other owner; nothing if the folder is ours now.
std::optional<Owner> FolderLock::State::try_take() {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  // A file may disappear at any time because another run ends; the loop then tries again.
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    int opened = ::open(file.c_str(), kFlags | O_CREAT | O_EXCL, 0644);
    const bool created = opened >= 0;
    if (!created && errno == EEXIST) opened = ::open(file.c_str(), kFlags);
    std::error_code error;
    if (opened < 0 && errno == ENOENT && fs::is_directory(folder, error)) continue;
    struct stat info {};
    if (opened >= 0 && (::fstat(opened, &info) != 0 || !S_ISREG(info.st_mode))) {
      ::close(opened);
      throw UserError(fmt::format("{} is not a regular file", file.string()), "remove it");
    }
    if (opened < 0)
      throw cannot_write(fmt::format("cannot write {}: {}", file.string(), std::strerror(errno)));
    std::optional<Owner> owner;
    try {
      owner = take_file(opened, created);
    } catch (...) {
      if (created) ::unlink(file.c_str());
      ::close(opened);
      throw;
    }
    if (fd >= 0) return std::nullopt;
    ::close(opened);
    if (owner) return owner;
  }
  return Owner{};
}

// Takes the folder by its open file, sets fd, and returns nothing. Or returns the other owner. Or
// returns nothing without setting fd: the file has been replaced in the meantime.
std::optional<Owner> FolderLock::State::take_file(int opened, bool created) {
  if (!created && lease && read_text(opened) == print(self)) {
    fd = opened;  // it is still ours: a failing file system had hidden that
    return std::nullopt;
  }
  const int error = options.lease ? ENOLCK : lock_file(opened);
  const bool by_lease = lacks_locks(error);
  if (error != 0 && !by_lease) {
    if (error == EAGAIN || error == EACCES) return parse_lock_owner(read_text(opened));
    throw RunError(fmt::format("cannot lock {}: {}", file.string(), std::strerror(error)));
  }
  if (!created) {
    struct stat held {
    }, named{};
    if (::fstat(opened, &held) != 0 || ::lstat(file.c_str(), &named) != 0 ||
        !same_file(held, named))
      return std::nullopt;
    const Owner owner = parse_lock_owner(read_text(opened));
    // A host whose file system has locks respects a lease, and vice versa.
    if ((by_lease || owner.kind == "lease") && !is_stale(opened, owner)) return owner;
    if (by_lease) {
      take_over(opened);
      return std::nullopt;
    }
  }
  lease = by_lease;
  self.kind = by_lease ? "lease" : "lock";
  write_text(opened, print(self), file);
  fd = opened;
  return std::nullopt;
}

bool FolderLock::State::is_stale(int opened, const Owner& owner) const {
  if (is_gone(owner)) return true;
  struct stat info {};
  if (::fstat(opened, &info) != 0) return false;
  // Without the file system's clock the owner may be active: it keeps the folder.
  const auto now = file_system_now(file);
  return now && *now - mtime(info) > (is_predecessor(owner) ? options.wait : options.stale);
}

// Removes a stale lease. Another start may have done so first and made its own file; that file is
// put back.
void FolderLock::State::take_over(int opened) const {
  struct stat stale {
  }, moved{};
  const fs::path aside = fmt::format("{}.stale-{}-{}", file.string(), self.pid, self.host);
  if (::fstat(opened, &stale) != 0 || ::rename(file.c_str(), aside.c_str()) != 0) return;
  if (::lstat(aside.c_str(), &moved) == 0 && !same_file(stale, moved) &&
      ::link(aside.c_str(), file.c_str()) != 0 && errno != EEXIST)
    ::rename(aside.c_str(), file.c_str());
  ::unlink(aside.c_str());
}

// Whether the file in the folder is the one that was taken; nothing if a failing file system hides
// this. Call it with the mutex held.
std::optional<bool> FolderLock::State::is_ours() const {
  const auto failed = [] {
    const bool gone = errno == ENOENT || errno == ENOTDIR || errno == ESTALE;
    return gone ? std::optional(false) : std::nullopt;
  };
  struct stat held {
  }, named{};
  if (fd < 0) return false;
  if (::fstat(fd, &held) != 0 || ::lstat(file.c_str(), &named) != 0) return failed();
  if (!same_file(held, named)) return false;
  if (!lease) return true;
  std::string text(kMaxBytes, '\0');
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  if (n < 0) return failed();
  text.resize(size_t(n));
  return text == print(self);
}

// Sets `lost` if the folder has a new owner. Call it with the mutex held.
void FolderLock::State::check() {
  if (!lost.empty() || is_ours().value_or(true)) return;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return;  // there is nothing to own
  ::close(std::exchange(fd, -1));
  std::optional<Owner> other;
  try {
    other = try_take();
    if (!other) return;
    lost = fmt::format("{} has been taken {}", folder.string(), describe(*other));
  } catch (const Error& e) {
    lost = fmt::format("{} is no longer held: {}", folder.string(), e.message());
  } catch (const std::exception& e) {  // it must not end the process from a thread
    lost = fmt::format("{} is no longer held: {}", folder.string(), e.what());
  }
}

void FolderLock::State::renew() {
  std::unique_lock lock(mutex);
  while (!wake.wait_for(lock, options.renew, [&] { return stop; })) {
    check();
    if (fd >= 0) ::futimens(fd, nullptr);
  }
}

void FolderLock::State::refuse(const Owner& owner) const {
  std::string hint =
      fmt::format("wait until that run ends, or give this one another folder with {}=<folder>",
                  options.setting);
  const bool leased = lease || owner.kind == "lease";
  const bool far = !owner.host.empty() && owner.host != self.host;
  if (leased)
    hint += fmt::format("; {} becomes stale {} s after its owner's last renewal", file.string(),
                        std::chrono::duration_cast<std::chrono::seconds>(options.stale).count());
  if (leased || far || owner.host.empty())
    hint += fmt::format("; if {} is gone, remove {}", far ? owner.host : "that run", file.string());
  throw UserError(fmt::format("{} is in use {}", folder.string(), describe(owner)), hint);
}

FolderLock::FolderLock(const fs::path& folder, FolderLockOptions options)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.folder = folder;
  s.file = folder / kName;
  s.options = std::move(options);
  s.self = {.kind = "",
            .host = host_name(),
            .started = utc_now(),
            .job = s.options.job,
            .pids = pid_namespace(),
            .pid = ::getpid(),
            .attempt = s.options.attempt};
  s.make_folder();
  // An owner that has just made its file writes its name into it shortly afterwards.
  constexpr std::chrono::milliseconds kPause{20}, kUntilNamed{1000};
  const auto began = std::chrono::steady_clock::now();
  while (const auto owner = s.try_take()) {
    // A predecessor's lease becomes stale `wait` after its last renewal, maybe just now.
    const auto until_ended = s.options.wait + (owner->kind == "lease" ? 2 : 0) * s.options.renew;
    const auto patience = owner->host.empty()        ? kUntilNamed
                          : s.is_predecessor(*owner) ? until_ended
                                                     : std::chrono::milliseconds(0);
    if (std::chrono::steady_clock::now() - began >= patience) s.refuse(*owner);
    if (s.options.waiting)
      s.options.waiting(
          fmt::format("waiting for {}, which is in use {}", folder.string(), describe(*owner)));
    std::this_thread::sleep_for(kPause);
  }
  s.renewer = std::thread([&s] { s.renew(); });
}

FolderLock::~FolderLock() {
  State& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    s.stop = true;
  }
  s.wake.notify_all();
  s.renewer.join();
  if (s.is_ours().value_or(false)) ::unlink(s.file.c_str());
  // Explicitly, since a forked child has the open file, too, until it executes another program.
  if (s.fd >= 0 && !s.lease) lock_file(s.fd, F_UNLCK);
  if (s.fd >= 0) ::close(s.fd);
  if (s.made_folder) ::rmdir(s.folder.c_str());
}

bool FolderLock::is_lease() const { return state_->lease; }

void FolderLock::require_held() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->check();
  }
  require_held_lately();
}

void FolderLock::require_held_lately() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->lost.empty()) return;
  throw RunError(state_->lost + ": this run ends, since two runs would mix their files",
                 "everything saved before is intact");
}

}  // namespace mtrain::storage
