#include "comm/failure_reporter.h"

#include <algorithm>
#include <sstream>
#include <thread>

#include <fmt/ranges.h>

namespace mtrain::comm {

namespace {

using Clock = std::chrono::steady_clock;

// How long a rank waits for reports: most arrive within milliseconds, those of busy ranks later.
constexpr std::chrono::nanoseconds kGrace = std::chrono::seconds(1);

// A reason or a call is a line or two; text from a peer is cut to this many bytes.
constexpr size_t kMaxText = 2000;
std::string bounded_report(const std::string& text) { return text.substr(0, kMaxText); }

std::string gave_up(int rank, std::string_view reason) {
  return fmt::format("rank {} of the group gave up: {}", rank, reason);
}

}  // namespace

FailureReporter::FailureReporter(std::shared_ptr<store::Store> store, std::string group, int rank,
                                 int ranks, std::chrono::nanoseconds timeout)
    : store_(std::move(store)),
      group_(std::move(group)),
      rank_(rank),
      ranks_(ranks),
      timeout_(timeout) {}

std::string FailureReporter::key(std::string_view what) const {
  return fmt::format("failures/{}/{}", group_, what);
}

void FailureReporter::abort(std::string_view reason) noexcept {
  try {
    {
      std::lock_guard lock(mutex_);
      if (own_reason_.empty()) own_reason_ = gave_up(rank_, reason);
    }
    if (store_->add(key("aborts"), 1) == 1) store_->set(key("reason"), gave_up(rank_, reason));
  } catch (const std::exception&) {
    // The store is gone; the peers still see their connections break.
  }
}

std::string FailureReporter::abort_reason() {
  if (store_->add(key("aborts"), 0) == 0) return "";
  return bounded_report(store_->get(key("reason")));
}

bool FailureReporter::heard_of_failure() {
  return store_->add(key("aborts"), 0) > 0 || store_->add(key("reports"), 0) > 0;
}

void FailureReporter::report(const GroupCall& call, const CollectiveFailure& failure) noexcept {
  try {
    store_->set(key(fmt::format("report/{}", rank_)),
                fmt::format("{} {} {} {} {}\n{}", call.number, call.calls, int(failure.timed_out),
                            failure.peer, call.what, failure.text));
    store_->add(key(fmt::format("reported/{}", rank_)), 1);
    store_->add(key("reports"), 1);
  } catch (const std::exception&) {
    // explain() reports that the store is gone.
  }
}

void FailureReporter::collect(std::map<int, Report>& reports) {
  for (int r = 0; r < ranks_; ++r) {
    if (reports.contains(r) || store_->add(key(fmt::format("reported/{}", r)), 0) == 0) continue;
    std::istringstream in(store_->get(key(fmt::format("report/{}", r))));
    Report& report = reports[r];
    in >> report.number >> report.calls >> report.timed_out >> report.peer >> std::ws;
    std::getline(in, report.what);
    std::getline(in, report.text, '\0');
    report.what = bounded_report(report.what);
    report.text = bounded_report(report.text);
  }
}

CommError FailureReporter::explain(const GroupCall& call, const CollectiveFailure& failure) {
  std::map<int, Report> reports;
  const auto deadline = Clock::now() + std::min(kGrace, timeout_);
  try {
    for (;;) {
      if (const std::string reason = abort_reason(); !reason.empty()) return CommError(reason);
      collect(reports);
      if (int(reports.size()) == ranks_ || Clock::now() > deadline) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(std::max(10, ranks_)));
    }
    return verdict(call, failure, reports);
  } catch (const CommError&) {
    std::lock_guard lock(mutex_);
    if (!own_reason_.empty()) return CommError(own_reason_);
    const std::string what =
        failure.peer < 0 ? failure.text
        : failure.timed_out
            ? fmt::format("rank {} of the group did not arrive after {:.3g} s", failure.peer,
                          std::chrono::duration<double>(timeout_).count())
            : fmt::format("the connection to rank {} of the group broke", failure.peer);
    return CommError(what + ", and the server of the rendezvous does not answer");
  }
}

// A rank that is in a graph may be at any of its calls.
std::set<int> FailureReporter::late_ranks(uint64_t number,
                                          const std::map<int, Report>& reports) const {
  std::set<int> silent, earliest;
  uint64_t lowest = number;
  for (int r = 0; r < ranks_; ++r) {
    if (!reports.contains(r))
      silent.insert(r);
    else
      lowest = std::min(lowest, reports.at(r).last());
  }
  if (!silent.empty()) return silent;
  for (const auto& [rank, r] : reports)
    if (r.last() == lowest && lowest < number) earliest.insert(rank);
  return earliest;
}

CommError FailureReporter::verdict(const GroupCall& call, const CollectiveFailure& failure,
                                   const std::map<int, Report>& reports) const {
  bool slow = false;
  for (const auto& [rank, r] : reports) {
    slow = slow || r.timed_out;
    if (!call.message && call.calls == 1 && r.calls == 1 && r.number == call.number &&
        r.what != call.what)
      return CommError(fmt::format("rank {} of the group is at a different call: {} instead of {}",
                                   rank, r.what, call.what),
                       "all ranks need the same settings and data sizes");
  }
  const auto silent = [&](int rank) { return !reports.contains(rank); };
  std::set<int> culprits;
  // A rank has ended if its connection broke and it does not answer; survivors break theirs too.
  if (!slow)
    for (const auto& [rank, r] : reports)
      if (r.peer >= 0 && silent(r.peer)) culprits.insert(r.peer);
  if (culprits.empty()) {
    if (call.message && failure.peer >= 0 && silent(failure.peer)) culprits.insert(failure.peer);
    if (!call.message) culprits = late_ranks(call.number, reports);
  }
  const std::string names = fmt::format("rank {} of the group", fmt::join(culprits, ", "));
  if (failure.peer < 0 && (call.message || !slow)) {
    std::string text = failure.text;
    for (const auto& [rank, r] : reports)
      if (text.empty() && !r.text.empty())
        text = fmt::format("rank {} of the group: {}", rank, r.text);
    if (!culprits.empty()) text += fmt::format("; {} does not answer", names);
    return CommError(text);
  }
  if (!slow)
    return CommError(culprits.empty()
                         ? fmt::format("the connection to rank {} of the group broke", failure.peer)
                         : names + " is gone: its connection broke");
  const double seconds = std::chrono::duration<double>(timeout_).count();
  const char* hint = "a rank is stuck or slow; comm.timeout_s sets how long to wait";
  if (call.message)
    return CommError(fmt::format("rank {} of the group did not {} after {:.3g} s", failure.peer,
                                 failure.sending ? "take a message" : "send", seconds),
                     hint);
  if (culprits.empty())
    return CommError(
        fmt::format("all ranks arrived, but the call did not end after {:.3g} s", seconds), hint);
  return CommError(fmt::format("{} did not arrive after {:.3g} s", names, seconds), hint);
}

}  // namespace mtrain::comm
