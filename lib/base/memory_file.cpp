#include "base/memory_file.h"

#include <sys/mman.h>
#include <cerrno>

namespace mtrain {

int memory_file(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  constexpr unsigned kNoExecution = 0x8;  // MFD_NOEXEC_SEAL, which headers of older systems lack
  const int fd = ::memfd_create(name, kFlags | kNoExecution);
  return fd < 0 && errno == EINVAL ? ::memfd_create(name, kFlags) : fd;
}

}  // namespace mtrain
