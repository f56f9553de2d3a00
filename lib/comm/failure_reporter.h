// When a group fails, its ranks report through the store which call each of them has reached. Every
// rank's error can then name the culprit: the rank that gave up and why, or else the rank that does
// not answer.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "store/store.h"

namespace mtrain::comm {

// The call that a rank has reached when it fails.
struct GroupCall {
  uint64_t number = 0;   // counts collectives, the same on all ranks
  std::string what;      // such as "all_reduce of 10 fp32", the same on all ranks
  bool message = false;  // a message between two ranks: the others take no part in it
  uint64_t calls = 1;    // collectives that are launched at once, by a graph; `number` is the first
};

// The failure of a call.
struct CollectiveFailure {
  int peer;  // the rank of the group at the other end; -1: unknown
  bool sending;
  bool timed_out;    // otherwise the connection broke
  std::string text;  // the library's own message; "" if another rank has failed
};

class FailureReporter {
 public:
  // `store` answers within a short time or throws.
  FailureReporter(std::shared_ptr<store::Store> store, std::string group, int rank, int ranks,
                  std::chrono::nanoseconds timeout);

  // Publishes why this rank gives up. Only the group's first reason is kept. Any thread may call
  // it.
  void abort(std::string_view reason) noexcept;

  // Returns whether any rank has aborted or reported a failure. Backends whose connections do not
  // break ask this.
  bool heard_of_failure();

  // Publishes which call this rank has reached. A rank calls it before it breaks its connections.
  void report(const GroupCall& call, const CollectiveFailure& failure) noexcept;
  // Waits a short time for the other ranks' reports and returns the error to throw.
  CommError explain(const GroupCall& call, const CollectiveFailure& failure);

 private:
  struct Report {
    uint64_t number = 0, calls = 1;
    uint64_t last() const { return number + calls - (calls > 0); }
    bool timed_out = false;
    int peer = 0;
    std::string what, text;
  };
  std::string key(std::string_view what) const;
  std::string abort_reason();  // "" while none has aborted
  void collect(std::map<int, Report>& reports);
  // Returns the ranks that a collective waits for: those that do not answer, or else those at the
  // earliest call. (A rank that answers from an earlier call is itself waiting.)
  std::set<int> late_ranks(uint64_t number, const std::map<int, Report>& reports) const;
  CommError verdict(const GroupCall& call, const CollectiveFailure& failure,
                    const std::map<int, Report>& reports) const;

  const std::shared_ptr<store::Store> store_;
  const std::string group_;
  const int rank_, ranks_;
  const std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::string own_reason_;
};

}  // namespace mtrain::comm
