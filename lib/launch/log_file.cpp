#include "launch/log_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace mtrain::launch {

namespace fs = std::filesystem;

namespace {

// A line that is longer is cut: a progress line may never end.
constexpr int64_t kLongestEnd = int64_t(1) << 20;

int create(const fs::path& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
}

fs::path numbered(const fs::path& path, int number) {
  return number == 0 ? path : fs::path(fmt::format("{}.{}", path.string(), number));
}

}  // namespace

LogFile::LogFile(fs::path path, int64_t most_bytes)
    : path_(std::move(path)), most_bytes_(most_bytes), fd_(create(path_)) {
  if (fd_ < 0) throw UserError(fmt::format("{}: {}", path_.string(), std::strerror(errno)));
}

LogFile::~LogFile() {
  if (fd_ >= 0) close(fd_);
}

std::string LogFile::write(std::string_view text) {
  while (fd_ >= 0 && !text.empty()) {
    // How much of the text belongs to this file.
    auto here = size_t(std::max<int64_t>(most_bytes_ - bytes_, 0));
    if (here < text.size()) {
      const size_t line_end = text.find('\n', here > 0 ? here - 1 : 0);
      const bool cut = line_end == std::string_view::npos;
      here = cut ? text.size() : line_end + 1;
      std::string why = write_all(text.substr(0, here));
      if (why.empty() && (!cut || bytes_ > most_bytes_ + kLongestEnd)) why = rotate();
      if (!why.empty()) return why;
    } else {
      here = text.size();
      if (std::string why = write_all(text); !why.empty()) return why;
    }
    text.remove_prefix(here);
  }
  return "";
}

std::string LogFile::write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return give_up(errno);
    bytes_ += n;
    text.remove_prefix(size_t(n));
  }
  return "";
}

std::string LogFile::rotate() {
  std::error_code error;
  // The oldest file is replaced.
  for (int number = kFiles - 1; number > 0; --number)
    if (fs::exists(numbered(path_, number - 1), error))
      fs::rename(numbered(path_, number - 1), numbered(path_, number), error);
  if (error) return give_up(error.value());
  close(std::exchange(fd_, create(path_)));
  bytes_ = 0;
  return fd_ < 0 ? give_up(errno) : "";
}

std::string LogFile::give_up(int error) {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  return fmt::format("{} is incomplete: {}", path_.string(), std::strerror(error));
}

}  // namespace mtrain::launch
