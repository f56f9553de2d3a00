#include "base/usable_cores.h"

#include <sched.h>

namespace mtrain {

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace mtrain
