// Checks of a host before ranks start on it: a table of what was found, and what to do about it.
// They take less than a second.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mtrain::launch {

struct HostCheck {
  // `fault`: ranks cannot work here. `unknown`: the host does not say.
  enum class Verdict { good, warn, fault, unknown };
  std::string name, value;
  Verdict verdict = Verdict::good;
  std::string hint = {};  // what to do; empty if good
};

struct HostCheckOptions {
  int ranks = 1;                     // of this host
  std::filesystem::path run_folder;  // need not exist; empty: no disk is checked
  std::filesystem::path rates;       // file of the rate of earlier starts; empty: it is not kept
  bool clock = true;                 // whether the host's clock is compared with the run folder's
};

// What was measured; the verdicts follow from it alone.
struct HostFacts {
  std::optional<double> gflops, last_gflops;  // of one core, in fp32
  int64_t memory_bytes = -1;                  // available; -1: unknown, as below
  int64_t disk_bytes = -1, shm_bytes = -1;    // free
  std::string disk_error;                     // why no file can be written; empty if it can
  int64_t descriptors = -1;                   // that a process may open if it asks (hard limit)
  std::optional<double> clock_skew_s;         // of the file system of the run folder
};
HostFacts measure_host(const HostCheckOptions& options);
// Allows this process and those that it starts to open the files of so many ranks, as far as the
// system lets it.
void raise_open_files(int ranks);
std::vector<HostCheck> judge_host(const HostFacts& facts, int ranks);

inline std::vector<HostCheck> check_host(const HostCheckOptions& options) {
  return judge_host(measure_host(options), options.ranks);
}

// The clock of a host, in seconds. All hosts of a job read theirs at about the same moment.
struct HostClock {
  std::string host;
  double seconds = 0;
};
// Compares them with that of host 0, which is the first. Returns a check for each other host, named
// "clock of HOST". A difference of a few seconds disturbs no training, but warns.
std::vector<HostCheck> compare_clocks(const std::vector<HostClock>& clocks);

// One line for each fault, and no line if ranks can work: "disk: 0 B free: delete old checkpoints".
std::vector<std::string> faults_of(const std::vector<HostCheck>& checks);
// The same for each warning.
std::vector<std::string> warnings_of(const std::vector<HostCheck>& checks);
// Returns the rate of a core to which the next start is compared. A slow start lowers it slowly: a
// host that stays slow is named more than once.
double rate_to_keep(double gflops, std::optional<double> last_gflops);

}  // namespace mtrain::launch
