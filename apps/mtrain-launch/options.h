// The command line of mtrain-launch, whose options have torchrun's names.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/agent.h"

namespace mtrain {

struct LaunchOptions {
  launch::AgentOptions agent;         // all but the command and its environment
  std::string token_file;             // has the job's token
  std::vector<std::string> rest;      // the words after the options
  std::vector<std::string> warnings;  // of options that have no effect
};

// Reads the options, and for those that are not given torchrun's variables PET_*. Returns nothing,
// with the exit code, where all is done: --help. Throws UserError for words that are not options,
// and values that do not fit.
std::optional<LaunchOptions> read_options(int argc, char** argv, int& exit_code);

}  // namespace mtrain
