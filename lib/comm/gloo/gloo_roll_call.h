// What the ranks of a failing group tell each other through the store, so that all can name the
// culprit: who gave up and why, and else who does not answer.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/error.h"
#include "comm/gloo/gloo_mesh.h"
#include "comm/store.h"

namespace mtrain {

// Where a rank stands when its call fails.
struct GlooCall {
  uint64_t number = 0;   // of collectives: ranks count them alike
  std::string what;      // "all_reduce of 10 fp32", alike on all ranks
  bool message = false;  // between two ranks; the others need not take part
};

class GlooRollCall {
 public:
  // `store` answers within a short time or throws.
  GlooRollCall(std::shared_ptr<Store> store, std::string group, int rank, int ranks,
               std::chrono::nanoseconds timeout);

  // The first abort of the group says why, to all. Any thread.
  void abort(std::string_view reason) noexcept;

  // Tells the others where this rank stands; before it breaks its connections.
  void report(const GlooCall& call, const GlooFailure& failure) noexcept;
  // What to throw, after waiting a while for the others' reports.
  CommError explain(const GlooCall& call, const GlooFailure& failure);

 private:
  struct Report {
    uint64_t number = 0;
    bool timed_out = false;
    int peer = 0;
    std::string what;
  };
  std::string key(std::string_view what) const;
  std::string abort_reason();  // "" while none has aborted
  void collect(std::map<int, Report>& reports);
  CommError verdict(const GlooCall& call, const GlooFailure& failure,
                    const std::map<int, Report>& reports) const;

  const std::shared_ptr<Store> store_;
  const std::string group_;
  const int rank_, ranks_;
  const std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::string own_reason_;
};

}  // namespace mtrain
