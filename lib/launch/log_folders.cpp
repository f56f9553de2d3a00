#include "launch/log_folders.h"

#include <filesystem>

#include "base/error.h"

namespace mtrain::launch {

namespace {

namespace fs = std::filesystem;

// Returns the number of the first folder attempt_<number>, at or after `from`, that has no output
// of these ranks yet, and makes their folders in it: output of earlier launches is kept.
int make_log_folders(const fs::path& log_dir, int from, int first_rank, int ranks) {
  for (int number = from;; ++number) {
    const fs::path attempt = log_dir / fmt::format("attempt_{}", number);
    const auto folder = [&](int i) { return attempt / fmt::format("rank_{}", first_rank + i); };
    std::error_code error;
    bool taken = false;
    for (int i = 0; i < ranks && !taken; ++i) taken = fs::exists(folder(i), error);
    if (taken) continue;
    fs::create_directories(attempt, error);
    // If two launches start at the same time, only one of them makes the first rank's folder.
    if (!error && !fs::create_directory(folder(0), error) && !error) continue;
    for (int i = 1; i < ranks && !error; ++i) fs::create_directory(folder(i), error);
    if (error)
      throw UserError(fmt::format("cannot make {}: {}", attempt.string(), error.message()),
                      "give a folder that can be written with --log_dir");
    return number;
  }
}

}  // namespace

int LogFolders::make(int first_rank, int ranks) {
  const AgentOptions& o = options_;
  if (o.log_dir.empty() || !(o.redirects.any() || o.tee.any())) return -1;
  last_ = make_log_folders(o.log_dir, last_ + 1, first_rank, ranks);
  console_.say(fmt::format("mtrain-launch: the ranks' output is in {}",
                           (o.log_dir / fmt::format("attempt_{}", last_)).string()));
  return last_;
}

}  // namespace mtrain::launch
