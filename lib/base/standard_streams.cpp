#include "base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

namespace mtrain {

void open_closed_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      // open() returns the lowest descriptor that is free, which is this one.
      if (const int opened = open("/dev/null", O_RDWR); opened != fd && opened >= 0) close(opened);
}

}  // namespace mtrain
