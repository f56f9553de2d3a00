#include "storage/read_mark.h"

#include <fcntl.h>
#include <unistd.h>

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

int open_marked(const fs::path& checkpoint) {
  return ::open((checkpoint / "state.json").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

struct flock whole_file(int16_t type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

ReadMark::ReadMark(const fs::path& checkpoint) : fd_(open_marked(checkpoint)) {
  struct flock lock = whole_file(F_RDLCK);
  if (fd_ >= 0) ::fcntl(fd_, F_OFD_SETLK, &lock);
}

ReadMark::~ReadMark() {
  if (fd_ >= 0) ::close(fd_);
}

bool is_being_read(const fs::path& checkpoint) {
  const int fd = open_marked(checkpoint);
  if (fd < 0) return false;
  struct flock lock = whole_file(F_WRLCK);
  const bool marked = ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(fd);
  return marked;
}

}  // namespace mtrain::storage
