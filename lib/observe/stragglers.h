// Finds ranks that compute slower than ranks of equal work. A pure function of times, so that all
// ranks can decide alike.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/stream.h"

namespace mtrain::observe {

// What a rank has computed in the steps that were timed since the check before.
struct RankWork {
  int group = 0;      // ranks of a group have equal work
  double step_s = 0;  // how long its compute stream computes in a step; waits do not count
  std::string host;
  std::map<std::string, double> operations;  // seconds of each operation in a step
};

// As one line of text, which ranks exchange.
std::string print_work(const RankWork& work);
RankWork parse_work(const std::string& text);  // throws BugError for another text

struct Straggler {
  int rank = 0;
  double ratio = 1;  // its speed over that of the others of its group
  double step_s = 0, others_s = 0;
  std::string host;
  std::string operation;   // the one that takes most time more than on the others; may be empty
  double operation_s = 0;  // by how much
  std::string str() const;
};

class StragglerFinder {
 public:
  static constexpr int64_t kEvery = 50;  // steps between two checks
  static constexpr double kSlow = 0.7;   // a lower speed is too slow
  static constexpr int kInRow = 2;       // checks until a rank is named

  struct Check {
    std::optional<Straggler> slowest;  // of all ranks that have others of equal work
    std::vector<Straggler> found;      // the ranks to name: each once, until it has recovered
  };
  // `all` has the work of every rank, by rank.
  Check look(const std::vector<RankWork>& all);

 private:
  std::vector<int> slow_checks_;  // by rank: in a row
};

// Sums the time of each operation of the compute stream over chosen steps.
class OperationTimes : public device::TimingSink {
 public:
  void record(const device::Timing& timing) override;
  // The launches since the last call were those of a step that `counts`, or are dropped.
  void end_step(bool counts);
  std::map<std::string, double> take(int64_t steps);  // seconds of a step

 private:
  std::mutex mutex_;
  using ByOperation = std::map<std::string_view, int64_t>;  // names are string literals
  ByOperation step_ns_, ns_;  // of the current step, and of earlier ones
};

}  // namespace mtrain::observe
