#include "launch/job_token.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/strings.h"

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

// Opens a regular file that is this user's alone; -1: there is none. Throws UserError for any other
// file.
int open_secret(const fs::path& path) {
  // O_NONBLOCK: a FIFO must not block.
  Descriptor d{open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  if (d.fd < 0 && errno == ENOENT) return -1;
  const auto refuse = [&](const std::string& why) {
    throw UserError(fmt::format("the token file {} {}", path.string(), why), kOwnHint);
  };
  if (d.fd < 0)
    refuse(errno == ELOOP ? "is a symbolic link"
                          : fmt::format("cannot be read: {}", std::strerror(errno)));
  struct stat file {};
  if (fstat(d.fd, &file) < 0 || !S_ISREG(file.st_mode)) refuse("is not a regular file");
  if (file.st_uid != geteuid()) refuse(fmt::format("belongs to user {}", file.st_uid));
  if (file.st_mode & 077)
    refuse(
        fmt::format("can be used by others (mode {:04o} instead of 0600)", file.st_mode & 07777));
  return std::exchange(d.fd, -1);
}

// Returns nothing where the file has no 64 digits (yet).
std::optional<Token> read_token(int fd) {
  char text[200];
  const ssize_t n = pread(fd, text, sizeof text, 0);
  return n < 0 ? std::nullopt : Token::parse(trim({text, size_t(n)}));
}

}  // namespace

void hide_token_variable() { unsetenv(kTokenVariable); }

Token read_token_file(const fs::path& path) {
  // A link of the user's own is followed here; the file that it names must pass the checks.
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  const Descriptor d{error ? -1 : open_secret(real)};
  if (d.fd < 0) throw UserError(fmt::format("there is no token file {}", path.string()), kOwnHint);
  if (const auto token = read_token(d.fd)) return *token;
  throw UserError(
      fmt::format("the token file {} does not hold 64 hexadecimal digits", path.string()),
      kOwnHint);
}

std::string JobToken::hint() {
  return "ranks prove to each other that they are of one job: set MTRAIN_TOKEN to the same 64 "
         "hexadecimal digits for every rank (openssl rand -hex 32), or name a file of them with "
         "--token_file on every host, or give a train.run_dir that all hosts share";
}

JobToken::JobToken(const Job& job, fs::path shared) : shared_(std::move(shared)) {
  if (!job.token.empty()) {
    token_ = Token::parse(job.token);
    if (!token_)
      throw UserError("MTRAIN_TOKEN is not a text of 64 hexadecimal digits",
                      "openssl rand -hex 32 makes one; the same for every rank");
  } else if (!job.token_file.empty()) {
    token_ = read_token_file(job.token_file);
  }
  if (job.rank == 0) make_shared_file(job);
}

// A lock on the file says that its job lives.
void JobToken::make_shared_file(const Job& job) {
  const bool needed = job.size > 1 && !token_;
  std::error_code ignored;
  if (fs::equivalent(shared_, job.token_file, ignored))
    return;  // the user's, who may need it again
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(job.restarts > 0 ? 30 : 0);
  for (;;) {
    const Descriptor old{open(shared_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
    if (old.fd < 0 && errno == ENOENT) break;
    if (old.fd < 0 || flock(old.fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
      unlink(shared_.c_str());
      break;
    }
    if (!needed) return;
    if (std::chrono::steady_clock::now() > deadline)
      throw UserError(fmt::format("{} is the token file of a job that lives", shared_.string()),
                      "another job trains in this folder: choose another train.run_dir");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (!needed) return;
  fs::create_directories(shared_.parent_path(), ignored);
  token_ = Token::random();
  lock_ = open(shared_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  const std::string text = token_->hex() + "\n";
  const bool locked = lock_ >= 0 && (flock(lock_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK);
  if (locked && write(lock_, text.data(), text.size()) == ssize_t(text.size())) return;
  const std::string why = std::strerror(errno);
  remove_shared_file();
  throw UserError(fmt::format("cannot write the token file {}: {}", shared_.string(), why), hint());
}

void JobToken::remove_shared_file() {
  if (lock_ < 0) return;
  // Where the file system has no locks, a later job may have replaced the file.
  struct stat own {};
  struct stat there {};
  if (fstat(lock_, &own) == 0 && lstat(shared_.c_str(), &there) == 0 && own.st_ino == there.st_ino)
    unlink(shared_.c_str());
  close(std::exchange(lock_, -1));
}

JobToken::~JobToken() { remove_shared_file(); }

std::optional<Token> JobToken::find() const {
  if (token_) return token_;
  const Descriptor d{open_secret(shared_)};
  return d.fd < 0 ? std::nullopt : read_token(d.fd);
}

}  // namespace mtrain::launch
