// The command line of mtrain-launch. Its options have torchrun's names.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent.h"

namespace mtrain {

struct LaunchOptions {
  launch::AgentOptions agent;            // without the command and its environment
  std::string token_file;                // the file with the job's token
  std::optional<uint16_t> metrics_port;  // absent: no metrics are served
  std::string metrics_host = "127.0.0.1";
  std::vector<std::string> rest;      // the words after the options
  std::vector<std::string> warnings;  // about options that have no effect
};

// Reads the options. An option that is not given is read from torchrun's environment variable
// PET_*. After --help it sets the exit code and returns nothing. Throws UserError for unknown
// options and invalid values.
std::optional<LaunchOptions> read_options(int argc, char** argv, int& exit_code);

}  // namespace mtrain
