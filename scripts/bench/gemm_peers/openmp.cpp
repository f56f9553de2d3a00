#include "openmp.h"

#include <dlfcn.h>

namespace mtrain::bench {

void use_one_openmp_thread() {
  thread_local bool done = false;
  if (done) return;
  done = true;
  // Looked up by name: which OpenMP runtime is loaded, if any, is the libraries' choice and not
  // ours.
  static const auto set =
      reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set) set(1);
}

}  // namespace mtrain::bench
