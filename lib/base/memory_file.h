// Files in memory, which other processes reach through a descriptor.
#pragma once

namespace mtrain {

// Returns a new file of no bytes that may be sealed, closed at exec; -1 with errno. Kernels can be
// set to refuse files that could be executed (sysctl vm.memfd_noexec=2); this one cannot be, if the
// kernel knows the difference (Linux 6.3).
int memory_file(const char* name);

}  // namespace mtrain
