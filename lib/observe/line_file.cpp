#include "observe/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace mtrain::observe {

LineFile::LineFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0)
    throw RunError(fmt::format("cannot open {}: {}", path_.string(), std::strerror(errno)),
                   "check train.run_dir");
}

LineFile::~LineFile() { ::close(fd_); }

void LineFile::append(std::string_view lines) {
  struct stat before {};
  ::fstat(fd_, &before);
  ssize_t n = 0;
  do n = ::write(fd_, lines.data(), lines.size());
  while (n < 0 && errno == EINTR);
  if (n == ssize_t(lines.size())) return;
  const int reason = n < 0 ? errno : ENOSPC;
  if (n > 0 && ::ftruncate(fd_, before.st_size) != 0) ::write(fd_, "\n", 1);
  if (!std::exchange(warned_, true))
    log::warn(fmt::format("cannot write {}: {}; the training continues, but lines are missing",
                          path_.string(), std::strerror(reason)));
}

}  // namespace mtrain::observe
