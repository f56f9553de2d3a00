// Megatron's command-line flags as overrides of a recipe.
#pragma once
#include <string>
#include <vector>

namespace mtrain::recipe {

// Rewrites the flags among the words of a command line: "--tp-comm-overlap" becomes
// "tp_comm_overlap=true", "--context-parallel-size 4" becomes "context_parallel_size=4", and
// "--cp-comm-type a2a p2p" becomes "cp_comm_type=[a2a, p2p]". All other words stay, among them
// mtrain's own options.
std::vector<std::string> flags_to_overrides(const std::vector<std::string>& words);

}  // namespace mtrain::recipe
