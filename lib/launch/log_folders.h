// The folders in which the output of the ranks is kept.
#pragma once
#include "launch/agent.h"
#include "launch/console.h"

namespace mtrain::launch {

// A new folder attempt_<number> for each start: output of earlier starts and launches is kept.
class LogFolders {
 public:
  LogFolders(const AgentOptions& options, Console& console)
      : options_(options), console_(console) {}

  // Makes the folders for a start of these ranks, and prints where they are. Returns their number;
  // -1: no output is kept. Throws UserError.
  int make(int first_rank, int ranks);

 private:
  const AgentOptions& options_;
  Console& console_;
  int last_ = -1;
};

}  // namespace mtrain::launch
