#include "launch/restart_count.h"

#include <cctype>

#include <fmt/format.h>

#include "launch/agent.h"
#include "launch/round_members.h"

namespace mtrain::launch {

namespace {

// Process numbers and times differ between two failures that are alike.
std::string without_digits(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isdigit(c); });
  return text;
}

bool are_alike(const RoundCause& a, const RoundCause& b) {
  return a.rank && a.rank == b.rank && a.step > 0 && a.step == b.step &&
         without_digits(a.message) == without_digits(b.message);
}

}  // namespace

void RestartCount::begin_with(const RoundFacts& before) {
  counted_from_ = before.counted_from;
  began_with_ = before.began_with;
  if (before.leader.empty()) return;  // nothing is lost
  made_ = before.restarts;
  failures_ = before.failures;
}

void RestartCount::begin_round(int64_t round, std::optional<int64_t> newest) {
  began_with_ = newest;
  if (round == 0) counted_from_ = newest.value_or(-1);
}

std::optional<std::string> RestartCount::why_none(const RoundCause& cause,
                                                  std::optional<int64_t> newest) {
  // While the folder cannot be read, nothing is known about new checkpoints.
  const int64_t checkpoint = newest.value_or(counted_from_);
  if (checkpoint > counted_from_) made_ = 0;
  counted_from_ = checkpoint;
  if (made_ > 0 && before_ && are_alike(*before_, cause))
    return line_of(fmt::format(
        "rank {} has failed twice in the same way at step {}: the ranks are not restarted",
        *cause.rank, cause.step));
  before_ = cause;
  return made_ >= most_ ? std::optional<std::string>("") : std::nullopt;
}

std::chrono::milliseconds RestartCount::count(bool was_long) {
  ++made_;
  failures_ = was_long ? 1 : failures_ + 1;
  return restart_delay(failures_);
}

void RestartCount::write(RoundFacts& facts, std::optional<int64_t> newest) const {
  facts.counted_from = facts.round == 0 ? newest.value_or(-1) : counted_from_;
  facts.began_with = newest;
  facts.restarts = made_;
  facts.failures = failures_;
}

}  // namespace mtrain::launch
