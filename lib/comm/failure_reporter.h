// What the ranks of a failing group tell each other through the store, so that all can name the
// culprit: who gave up and why, and else who does not answer.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "comm/store.h"

namespace mtrain {

// Where a rank stands when its call fails.
struct GroupCall {
  uint64_t number = 0;   // of collectives: ranks count them alike
  std::string what;      // "all_reduce of 10 fp32", alike on all ranks
  bool message = false;  // between two ranks; the others need not take part
};

// How it fails.
struct CollectiveFailure {
  int peer;  // rank in the group that it has to do with; -1: unknown
  bool sending;
  bool timed_out;    // else the connection broke
  std::string text;  // what the library says; "": the failure is another rank's
};

class FailureReporter {
 public:
  // `store` answers within a short time or throws.
  FailureReporter(std::shared_ptr<Store> store, std::string group, int rank, int ranks,
                  std::chrono::nanoseconds timeout);

  // The first abort of the group says why, to all. Any thread.
  void abort(std::string_view reason) noexcept;

  // Whether a rank has aborted or told of a failure: for backends whose connections do not break.
  bool heard();

  // Tells the others where this rank stands; before it breaks its connections.
  void report(const GroupCall& call, const CollectiveFailure& failure) noexcept;
  // What to throw, after waiting a while for the others' reports.
  CommError explain(const GroupCall& call, const CollectiveFailure& failure);

 private:
  struct Report {
    uint64_t number = 0;
    bool timed_out = false;
    int peer = 0;
    std::string what, text;
  };
  std::string key(std::string_view what) const;
  std::string abort_reason();  // "" while none has aborted
  void collect(std::map<int, Report>& reports);
  std::set<int> behind(uint64_t number, const std::map<int, Report>& reports) const;
  CommError verdict(const GroupCall& call, const CollectiveFailure& failure,
                    const std::map<int, Report>& reports) const;

  const std::shared_ptr<Store> store_;
  const std::string group_;
  const int rank_, ranks_;
  const std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::string own_reason_;
};

}  // namespace mtrain
