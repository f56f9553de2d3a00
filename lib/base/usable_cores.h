#pragma once

namespace mtrain {

// Returns how many cores this process may use; at least 1.
int usable_cores();

}  // namespace mtrain
