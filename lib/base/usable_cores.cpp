#include "base/usable_cores.h"

#include <sched.h>
#include <algorithm>
#include <cstdlib>

namespace mtrain {

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int host_cores() {
  const char* cores = std::getenv(kHostCoresVariable);
  return std::max(usable_cores(), cores ? std::atoi(cores) : 0);
}

}  // namespace mtrain
