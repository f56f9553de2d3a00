#include "launch/job_token.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "launch/end_signals.h"

namespace mtrain::launch {

namespace fs = std::filesystem;

namespace {

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

constexpr const char* kOwnHint =
    "make it with  (umask 077; openssl rand -hex 32 >FILE)  as the user who trains";

// Returns why the open file is not a secret of this user; "" if it is one.
std::string fault_of(int fd) {
  struct stat file {};
  if (fstat(fd, &file) < 0 || !S_ISREG(file.st_mode)) return "is not a regular file";
  if (file.st_uid != geteuid()) return fmt::format("belongs to user {}", file.st_uid);
  if (file.st_mode & 077)
    return fmt::format("can be used by others (mode {:04o} instead of 0600)", file.st_mode & 07777);
  return "";
}

// Opens a regular file that only this user can access; -1: there is none. Throws UserError for any
// other file.
int open_secret(const fs::path& path, const std::string& hint, const char* what = "token file") {
  // O_NONBLOCK: a FIFO must not block.
  Descriptor d{open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  if (d.fd < 0 && errno == ENOENT) return -1;
  std::string fault;
  if (d.fd >= 0)
    fault = fault_of(d.fd);
  else
    fault = errno == ELOOP ? "is a symbolic link"
                           : fmt::format("cannot be read: {}", std::strerror(errno));
  if (!fault.empty())
    throw UserError(fmt::format("the {} {} {}", what, path.string(), fault), hint);
  return std::exchange(d.fd, -1);
}

// Whether the path still names the open file.
bool is_file_at(int fd, const fs::path& path) {
  struct stat own {};
  struct stat at_path {};
  return fstat(fd, &own) == 0 && lstat(path.c_str(), &at_path) == 0 &&
         own.st_dev == at_path.st_dev && own.st_ino == at_path.st_ino;
}

// The shared file of this process, for signal handlers.
constexpr size_t kMaxPath = 4096;
char g_own_file[kMaxPath];
std::atomic<int> g_own_lock = -1;  // -1: there is none

void note_own_file(int lock, const fs::path& path) {
  if (path.native().size() >= kMaxPath) return;
  std::memcpy(g_own_file, path.c_str(), path.native().size() + 1);
  g_own_lock = lock;
}

void end_by_signal(int signal) {
  remove_own_token_file();
  ::signal(signal, SIG_DFL);
  raise(signal);  // arrives when this function returns
}

// Returns nothing if the file does not have 64 digits (yet).
std::optional<Token> read_token(int fd) {
  char text[200];
  const ssize_t n = pread(fd, text, sizeof text, 0);
  return n < 0 ? std::nullopt : Token::parse(trim({text, size_t(n)}));
}

}  // namespace

void remove_own_token_file() noexcept {
  const int lock = g_own_lock.exchange(-1);
  struct stat own {};
  struct stat at_path {};
  if (lock >= 0 && fstat(lock, &own) == 0 && lstat(g_own_file, &at_path) == 0 &&
      own.st_dev == at_path.st_dev && own.st_ino == at_path.st_ino)
    unlink(g_own_file);
}

TokenFileGuard::TokenFileGuard() {
  for (const int s : kEndSignals) {
    struct sigaction now {};
    if (sigaction(s, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
    now.sa_handler = end_by_signal;
    sigaction(s, &now, nullptr);
  }
}

TokenFileGuard::~TokenFileGuard() {
  for (const int s : kEndSignals) {
    struct sigaction now {};
    if (sigaction(s, nullptr, &now) == 0 && now.sa_handler == end_by_signal) ::signal(s, SIG_DFL);
  }
}

void hide_token_variable() { unsetenv(kTokenVariable); }

Token read_token_file(const fs::path& path) {
  // A link of the user's own is followed here; the file that it names must pass the checks.
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  const Descriptor d{error ? -1 : open_secret(real, kOwnHint)};
  if (d.fd < 0) throw UserError(fmt::format("there is no token file {}", path.string()), kOwnHint);
  if (const auto token = read_token(d.fd)) return *token;
  throw UserError(
      fmt::format("the token file {} does not hold 64 hexadecimal digits", path.string()),
      kOwnHint);
}

std::string read_password_file(const fs::path& path) {
  const std::string hint = "chmod 600 FILE, as the user who trains";
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  const Descriptor d{error ? -1 : open_secret(real, hint, "password file")};
  if (d.fd < 0)
    throw UserError(
        fmt::format("the password file {} does not exist or cannot be read", path.string()), hint);
  char text[1024];
  const ssize_t n = pread(d.fd, text, sizeof text, 0);
  const std::string_view all(text, n < 0 ? 0 : size_t(n));
  const std::string_view line = all.substr(0, all.find_first_of("\r\n"));
  if (line.empty() || line.size() == sizeof text)
    throw UserError(
        fmt::format("the password file {} has no password in its first line", path.string()));
  return std::string(line);
}

std::string JobToken::hint() {
  return "ranks prove to each other that they belong to the same job: set MTRAIN_TOKEN to the same "
         "64 "
         "hexadecimal digits for every rank (openssl rand -hex 32), or name a file of them with "
         "--token_file on every host, or give a train.run_dir that all hosts share";
}

JobToken::JobToken(const Job& job, fs::path shared, bool replaces) : shared_(std::move(shared)) {
  if (!job.token.empty()) {
    token_ = Token::parse(job.token);
    if (!token_)
      throw UserError("MTRAIN_TOKEN does not have 64 hexadecimal digits",
                      "openssl rand -hex 32 makes one; the same for every rank");
  } else if (!job.token_file.empty()) {
    token_ = read_token_file(job.token_file);
  }
  if (job.rank == 0) make_shared_file(job, replaces);
}

// A lock on the file shows that its job is running.
void JobToken::make_shared_file(const Job& job, bool replaces) {
  const bool needed = job.size > 1 && !token_;
  std::error_code ignored;
  if (fs::equivalent(shared_, job.token_file, ignored))
    return;  // it is the user's file, and may be needed later
  constexpr std::chrono::milliseconds kUntilReplaced{1500}, kUntilRestarted{30000};
  const std::chrono::milliseconds patience = replaces           ? kUntilReplaced
                                             : job.restarts > 0 ? kUntilRestarted
                                                                : std::chrono::milliseconds(0);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  // Other jobs may replace the file between any two steps.
  constexpr int kMaxRaces = 100;
  for (int races = 0; races < kMaxRaces; ++races) {
    // O_RDWR: NFS locks only files that are open for writing.
    const Descriptor old{open(shared_.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
    const bool none = old.fd < 0 && errno == ENOENT;
    const bool locked = old.fd >= 0 && flock(old.fd, LOCK_EX | LOCK_NB) == 0;
    const bool in_use = old.fd >= 0 && !locked && errno == EWOULDBLOCK;
    if (!locked && !needed) return;
    const bool waits = std::chrono::steady_clock::now() <= deadline;
    if (in_use && (waits || !replaces)) {
      if (!waits)
        throw UserError(fmt::format("{} is the token file of a running job", shared_.string()),
                        "another job trains in this folder: choose another train.run_dir");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      races = 0;
      continue;
    }
    if ((locked || in_use) && !is_file_at(old.fd, shared_)) continue;
    if (!none) unlink(shared_.c_str());
    if (!needed) return;
    if (write_shared_file()) return note_own_file(lock_, shared_);
  }
  throw UserError(fmt::format("the token file {} cannot be replaced", shared_.string()), hint());
}

// Returns false if another job has made the file.
bool JobToken::write_shared_file() {
  std::error_code ignored;
  fs::create_directories(shared_.parent_path(), ignored);
  token_ = Token::random();
  // The file gets its name once it is locked and complete.
  std::string name = shared_.string() + ".XXXXXX";
  lock_ = mkostemp(name.data(), O_CLOEXEC);
  const auto lock_and_write = [&] {
    const std::string text = token_->hex() + "\n";
    return lock_ >= 0 && (flock(lock_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
           write(lock_, text.data(), text.size()) == ssize_t(text.size());
  };
  const auto give_up = [&](const std::string& what) {
    if (lock_ >= 0) {
      unlink(name.c_str());
      close(std::exchange(lock_, -1));
    }
    throw UserError(fmt::format("the token file {} {}", shared_.string(), what), hint());
  };
  const auto no_write = [] { return fmt::format("cannot be written: {}", std::strerror(errno)); };
  if (!lock_and_write()) give_up(no_write());
  // A mount may give files another owner or mode; ranks would then refuse this file.
  if (const std::string fault = fault_of(lock_); !fault.empty()) give_up(fault);
  const int why = link(name.c_str(), shared_.c_str()) == 0 ? 0 : errno;
  const bool done = why == 0 || is_file_at(lock_, shared_);  // NFS may lose the reply to link()
  unlink(name.c_str());
  if (done) return true;
  close(std::exchange(lock_, -1));
  if (why == EEXIST) return false;
  // This file system has no links.
  name = shared_.string();
  lock_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (lock_ < 0 && errno == EEXIST) return false;
  if (!lock_and_write()) give_up(no_write());
  return true;
}

void JobToken::remove_shared_file() {
  if (lock_ < 0) return;
  int own = lock_;
  g_own_lock.compare_exchange_strong(own, -1);
  // A later job may have replaced the file if the file system has no locks.
  if (is_file_at(lock_, shared_)) unlink(shared_.c_str());
  close(std::exchange(lock_, -1));
}

JobToken::~JobToken() { remove_shared_file(); }

std::optional<Token> JobToken::find() const {
  if (token_) return token_;
  const Descriptor d{open_secret(shared_, hint())};
  return d.fd < 0 ? std::nullopt : read_token(d.fd);
}

}  // namespace mtrain::launch
