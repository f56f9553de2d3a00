// Slurm's lists of hosts: "n[1-3,7],m[01-03]x[1-2],login".
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain::launch {

inline constexpr size_t kMostHosts = 1 << 16;

// Returns all names, or the first `most` of them, in the order in which Slurm numbers the hosts.
// Numbers keep their leading zeros. A name may have several brackets: the last one counts fastest.
// Throws UserError for a text that is not such a list.
std::vector<std::string> expand_hosts(std::string_view list, size_t most = kMostHosts);

}  // namespace mtrain::launch
