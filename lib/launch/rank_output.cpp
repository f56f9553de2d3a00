#include "launch/rank_output.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace mtrain::launch {

RankOutput::Ends RankOutput::pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0) throw RunError(fmt::format("pipe: {}", std::strerror(errno)));
  return {ends[0], ends[1]};
}

RankOutput::Ends RankOutput::terminal(int terminal) {
  const int launcher = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  char name[128];
  int rank = -1;
  if (launcher >= 0 && grantpt(launcher) == 0 && unlockpt(launcher) == 0 &&
      ptsname_r(launcher, name, sizeof name) == 0)
    rank = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (rank < 0) {
    if (launcher >= 0) close(launcher);
    return {};
  }
  termios mode;
  if (tcgetattr(rank, &mode) == 0) {
    cfmakeraw(&mode);  // the real terminal translates line ends
    tcsetattr(rank, TCSANOW, &mode);
  }
  winsize size;
  if (ioctl(terminal, TIOCGWINSZ, &size) == 0) ioctl(launcher, TIOCSWINSZ, &size);
  return {launcher, rank};
}

RankOutput::RankOutput(int fd, OutputStream* show, std::string prefix,
                       std::unique_ptr<LogFile> file, OutputStream& complaints)
    : fd_(fd),
      show_(show),
      prefix_(std::move(prefix)),
      file_(std::move(file)),
      complaints_(&complaints) {}

RankOutput::RankOutput(RankOutput&& o) noexcept
    : fd_(std::exchange(o.fd_, -1)),
      show_(o.show_),
      prefix_(std::move(o.prefix_)),
      line_(std::move(o.line_)),
      file_(std::move(o.file_)),
      complaints_(o.complaints_) {
  o.line_.clear();
}

RankOutput::~RankOutput() {
  flush();
  if (fd_ >= 0) close(fd_);
}

bool RankOutput::pump() {
  char buffer[16384];
  const ssize_t n = read(fd_, buffer, sizeof buffer);
  if (n < 0) return errno == EINTR || errno == EAGAIN;  // a terminal ends with EIO
  if (n == 0) return false;
  const std::string_view text(buffer, size_t(n));
  if (file_)
    if (const std::string why = file_->write(text); !why.empty())
      complaints_->write(complaints_->fit(fmt::format("mtrain-launch: warning: {}", why)) + "\n");
  if (!show_) return true;
  if (prefix_.empty()) {
    show_->write(text);
    return true;
  }
  constexpr size_t kLongestLine = 8000;
  for (const char c : text) {
    line_ += c;
    if (c == '\n' || line_.size() > kLongestLine) flush();
  }
  return true;
}

void RankOutput::drain() {
  pollfd p{fd_, POLLIN, 0};
  // A process that has left the job may hold the other end and continue to write.
  constexpr int kMaxReads = 4096;
  for (int i = 0; i < kMaxReads && poll(&p, 1, 0) > 0; ++i)
    if (!pump()) return;
}

void RankOutput::resize(int terminal) const {
  winsize size;
  if (isatty(fd_) && ioctl(terminal, TIOCGWINSZ, &size) == 0) ioctl(fd_, TIOCSWINSZ, &size);
}

void RankOutput::flush() {
  if (line_.empty()) return;
  if (line_.back() == '\n') line_.pop_back();
  // A line with carriage returns overwrites itself, so it has no width.
  const bool drawn = line_.find('\r') != std::string::npos;
  show_->write((drawn ? prefix_ + line_ : show_->fit(prefix_ + line_)) + "\n");
  line_.clear();
}

}  // namespace mtrain::launch
