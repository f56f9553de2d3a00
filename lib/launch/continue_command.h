// The command that continues a run.
#pragma once
#include <string>
#include <vector>

namespace mtrain::launch {

// The variable by which mtrain-launch passes that command to its ranks.
inline constexpr const char* kContinueVariable = "MTRAIN_CONTINUE";

// Returns the command line for a shell that continues the run which these words have started.
std::string continue_command(const std::vector<std::string>& words);

}  // namespace mtrain::launch
