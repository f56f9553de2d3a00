// The command that continues a run.
#pragma once
#include <string>
#include <vector>

namespace mtrain::launch {

// The variable in which mtrain-launch passes that command to its ranks.
inline constexpr const char* kContinueVariable = "MTRAIN_CONTINUE";

// Returns a shell command that continues the run that was started with these words.
std::string continue_command(const std::vector<std::string>& words);

}  // namespace mtrain::launch
