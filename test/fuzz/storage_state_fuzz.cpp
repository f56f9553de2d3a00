// Any file is refused as the state of a training, or has integers and texts that are saved again.
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "storage/state.h"

using namespace mtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = ::memfd_create("state.json", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != ssize_t(size)) return -1;
  try {
    const storage::TrainState state =
        storage::TrainState::load(fmt::format("/proc/self/fd/{}", fd));
    for (const char* key : {"step", "recipe", "updates"})
      if (state.contains(key)) {
        try {
          state.integer(key);
        } catch (const UserError&) {
          state.text(key);
        }
      }
  } catch (const UserError&) {
  } catch (const RunError&) {
  }
  ::close(fd);
  return 0;
}
