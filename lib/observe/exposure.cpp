#include "observe/exposure.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/strings.h"

namespace mtrain::observe {

namespace {
bool communicates(device::StreamId stream) {
  return stream.kind != device::StreamKind::compute && stream.kind != device::StreamKind::copy;
}

// The messages between stages count together with a pipeline's collectives.
device::StreamKind counted_as(device::StreamId stream) {
  const bool message =
      stream.kind == device::StreamKind::pp_send || stream.kind == device::StreamKind::pp_recv;
  return message ? device::StreamKind::pp : stream.kind;
}
}  // namespace

Communication& Communication::operator+=(const Communication& o) {
  busy_ns += o.busy_ns;
  exposed_ns += o.exposed_ns;
  idle_ns = idle_ns && o.idle_ns ? std::optional(*idle_ns + *o.idle_ns) : std::nullopt;
  bytes += o.bytes;
  paired_busy_ns += o.paired_busy_ns;
  paired_exposed_ns += o.paired_exposed_ns;
  return *this;
}

void Exposure::record(const device::Timing& t) {
  if (t.stream.kind == device::StreamKind::compute) {
    std::lock_guard lock(mutex_);
    compute_was_occupied(t.begin_ns, t.end_ns);
    compute_ns_ += t.end_ns - t.begin_ns;
  }
  if (!communicates(t.stream)) return;
  const int64_t idle = t.idle_ns.value_or(0), busy = t.end_ns - t.begin_ns - idle;
  std::lock_guard lock(mutex_);
  since_[counted_as(t.stream)] +=
      {.busy_ns = busy, .bytes = t.wire_bytes, .paired_busy_ns = t.paired ? busy : 0};
  if (!t.idle_ns) {
    idle_[t.stream].known = false;
    since_[counted_as(t.stream)].idle_ns.reset();
  }
  if (idle > 0) idle_[t.stream].times.push_back({t.begin_ns, t.begin_ns + idle});
}

std::optional<int64_t> Exposure::idle_in(const device::Waiting& w) {
  const StreamIdle& of_stream = idle_[w.waits_for];
  if (!of_stream.known) return {};
  int64_t idle = 0;
  for (const Idle& i : of_stream.times)
    idle += std::max<int64_t>(0, std::min(w.end_ns, i.end_ns) - std::max(w.begin_ns, i.begin_ns));
  return idle;
}

void Exposure::waited(const device::Waiting& w) {
  if (w.stream.kind != device::StreamKind::compute) return;
  std::lock_guard lock(mutex_);
  compute_was_occupied(w.begin_ns, w.end_ns);
  if (!communicates(w.waits_for)) return;
  // The waits of the compute stream come in the order of time. Idle times that ended before this
  // one are therefore not needed any more.
  for (auto& [stream, idle] : idle_)
    while (!idle.times.empty() && idle.times.front().end_ns <= w.begin_ns) idle.times.pop_front();
  const std::optional<int64_t> idle = idle_in(w);
  const int64_t exposed = w.end_ns - w.begin_ns - idle.value_or(0);
  since_[counted_as(w.waits_for)] +=
      {.exposed_ns = exposed, .idle_ns = idle, .paired_exposed_ns = w.paired ? exposed : 0};
}

void Exposure::compute_was_occupied(int64_t begin_ns, int64_t end_ns) {
  if (compute_end_ns_) starved_ns_ += std::max<int64_t>(0, begin_ns - *compute_end_ns_);
  compute_end_ns_ = std::max(end_ns, compute_end_ns_.value_or(end_ns));
}

int64_t Exposure::take_starved_ns() {
  std::lock_guard lock(mutex_);
  compute_end_ns_.reset();
  return std::exchange(starved_ns_, 0);
}

int64_t Exposure::take_compute_ns() {
  std::lock_guard lock(mutex_);
  return std::exchange(compute_ns_, 0);
}

Exposure::ByKind Exposure::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(since_, {});
}

namespace {
double seconds_of_ns(int64_t ns) { return double(ns) * 1e-9; }
}  // namespace

namespace {

// Returns the parallelism that a kind of communication serves.
std::string axis_of(device::StreamKind kind) {
  const std::string name(stream_kind_name(kind));
  return name.substr(0, name.find('_'));
}

// Returns the share in percent without decimals, or with one decimal if it would be 0 without.
std::string percent(double share) {
  return fmt::format("{:.{}f}", 100 * share, share > 0 && share < 0.005 ? 1 : 0);
}

// Returns "dp 5, tp 2", the largest first; without the shares if there is only one.
std::string axes_text(const std::map<std::string, double>& shares) {
  std::vector<std::pair<std::string, double>> sorted;
  for (const auto& [axis, share] : shares)
    if (share >= 0.005) sorted.emplace_back(axis, share);
  if (sorted.empty()) return "";
  if (sorted.size() == 1) return fmt::format(" ({})", sorted[0].first);
  std::ranges::stable_sort(sorted, std::greater(), &std::pair<std::string, double>::second);
  std::string text;
  for (const auto& [axis, share] : sorted)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis, percent(share));
  return fmt::format(" ({})", text);
}

}  // namespace

std::string exposure_summary(const Exposure::ByKind& communication, int64_t steps_ns,
                             int64_t steps) {
  double exposed = 0, idle = 0;
  bool idle_known = true;
  std::map<std::string, double> exposed_by, idle_by;
  for (const auto& [kind, c] : communication) {
    const auto share = [&](int64_t ns) { return steps_ns > 0 ? double(ns) / double(steps_ns) : 0; };
    exposed += share(c.exposed_ns);
    exposed_by[axis_of(kind)] += share(c.exposed_ns);
    idle += share(c.idle_ns.value_or(0));
    idle_by[axis_of(kind)] += share(c.idle_ns.value_or(0));
    idle_known = idle_known && c.idle_ns;
  }
  return fmt::format(
      "communication: {} % of a step exposed{}, {}, {} step{} timed", percent(exposed),
      axes_text(exposed_by),
      idle_known ? fmt::format("{} % idle{}", percent(idle), axes_text(idle_by)) : "idle unknown",
      steps, steps == 1 ? "" : "s");
}

std::string exposure_text(const Exposure::ByKind& communication) {
  std::string text;
  for (const auto& [kind, c] : communication) {
    const auto in_pairs = [&](int64_t ns) {
      return c.paired() ? fmt::format(", {:.3g} s of it in pairs", seconds_of_ns(ns)) : "";
    };
    const double share = c.busy_ns > 0 ? 100 * double(c.exposed_ns) / double(c.busy_ns) : 0;
    text += fmt::format(
        "{}{}: {:.3g} s at work{}, {:.3g} s exposed ({:.0f} %){}, {}, {}", text.empty() ? "" : "; ",
        stream_kind_name(kind), seconds_of_ns(c.busy_ns), in_pairs(c.paired_busy_ns),
        seconds_of_ns(c.exposed_ns), share, in_pairs(c.paired_exposed_ns),
        c.idle_ns ? fmt::format("{:.3g} s idle", seconds_of_ns(*c.idle_ns)) : "idle unknown",
        human_bytes(double(c.bytes)));
  }
  return text;
}

}  // namespace mtrain::observe
