// How often the ranks of a job have been started again, and whether they are once more.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "launch/launcher_notes.h"

namespace mtrain::launch {

// Restarts are counted until there is a new checkpoint. A checkpoint is the number of its step; -1:
// there is none. `newest` is nothing while the folder cannot be read.
class RestartCount {
 public:
  explicit RestartCount(int most) : most_(most) {}
  // Continues the count of another leader.
  void begin_with(const RoundFacts& before);

  void begin_round(int64_t round, std::optional<int64_t> newest);
  // Whether a checkpoint has been saved since the round began.
  bool has_saved(std::optional<int64_t> newest) const {
    return newest && began_with_ && *newest > *began_with_;
  }
  // Returns why the ranks are not started again after this failure, as a line or an empty text;
  // nothing if they are.
  std::optional<std::string> why_none(const RoundCause& cause, std::optional<int64_t> newest);
  // Counts a restart. Returns how long to wait before it: longer if the rounds before were short.
  std::chrono::milliseconds count(bool was_long);

  int made() const { return made_; }
  int left() const { return most_ > made_ ? most_ - made_ : 0; }
  int most() const { return most_; }
  int64_t counted_from() const { return counted_from_; }
  void write(RoundFacts& facts, std::optional<int64_t> newest) const;

 private:
  const int most_;
  int made_ = 0, failures_ = 0;        // failures of short rounds in a row
  int64_t counted_from_ = -1;          // the newest checkpoint at the last failure
  std::optional<int64_t> began_with_;  // the newest checkpoint when the round began
  std::optional<RoundCause> before_;   // the last failure
};

}  // namespace mtrain::launch
