#pragma once

namespace mtrain {

// Returns how many cores this process may use; at least 1.
int usable_cores();

// Returns how many cores the ranks of this host may use together. They are more than usable_cores()
// in a rank that mtrain-launch has bound to cores of its own.
int host_cores();
// The variable by which mtrain-launch passes that number to ranks that it binds.
constexpr const char* kHostCoresVariable = "MTRAIN_HOST_CORES";

}  // namespace mtrain
