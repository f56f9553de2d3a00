#include "base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/strings.h"

namespace mtrain {
namespace fs = std::filesystem;

namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "a special file";
}

UserError failure(const char* verb, const fs::path& path, int error) {
  return UserError(fmt::format("cannot {} {}: {}", verb, path.string(), std::strerror(error)));
}

}  // namespace

RegularFile open_regular_file(const fs::path& path) {
  // The kind is read from the open descriptor, since the name may be replaced in between. Without
  // O_NONBLOCK, open() waits for a writer of a pipe; without O_NOCTTY a terminal may become the
  // controlling terminal of this process.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    if (errno != ENXIO) throw failure("open", path, errno);
    throw UserError(fmt::format("{} is not a regular file, but a socket or a device without a "
                                "driver",
                                path.string()),
                    "give the path of a file");
  }
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return {fd, info.st_size};
  ::close(fd);
  throw UserError(
      fmt::format("{} is not a regular file, but {}", path.string(), kind_of(info.st_mode)),
      S_ISFIFO(info.st_mode) ? "write the stream to a file first" : "give the path of a file");
}

std::string read_regular_file(const fs::path& path, int64_t most) {
  const RegularFile file = open_regular_file(path);
  std::string content;
  char piece[1 << 16];
  int64_t has = file.size;  // number of bytes, as far as known
  int error = 0;
  // Reads until the end, since files of /proc do not report their size.
  while (has <= most) {
    const ssize_t n = ::read(file.fd, piece, sizeof(piece));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    if (n <= 0) break;
    content.append(piece, size_t(n));
    has = std::max(has, int64_t(content.size()));
  }
  ::close(file.fd);
  if (error != 0) throw failure("read", path, error);
  if (has > most)
    throw UserError(fmt::format("{} has {}, and such a file may have at most {}", path.string(),
                                human_bytes(double(has)), human_bytes(double(most))),
                    "it is the wrong file, or it is damaged");
  return content;
}

}  // namespace mtrain
