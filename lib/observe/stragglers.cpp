#include "observe/stragglers.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include <fmt/core.h>

#include "base/error.h"

namespace mtrain::observe {

namespace {

// The median; the lower one of two.
double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ptrdiff_t((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Returns the values of the other ranks of this rank's group.
template <class Value>
std::vector<double> of_others(const std::vector<RankWork>& all, size_t rank, Value&& value) {
  std::vector<double> values;
  for (size_t r = 0; r < all.size(); ++r)
    if (r != rank && all[r].group == all[rank].group) values.push_back(value(all[r]));
  return values;
}

void find_operation(const std::vector<RankWork>& all, Straggler& s) {
  for (const auto& [name, seconds] : all[size_t(s.rank)].operations) {
    const double usual = middle_of(of_others(all, size_t(s.rank), [&](const RankWork& w) {
      const auto same = w.operations.find(name);
      return same == w.operations.end() ? 0.0 : same->second;
    }));
    if (seconds - usual > s.operation_s) s.operation = name, s.operation_s = seconds - usual;
  }
}

}  // namespace

std::string print_work(const RankWork& w) {
  std::string text = fmt::format("{} {:.9g} {}", w.group, w.step_s, w.host.empty() ? "?" : w.host);
  for (const auto& [name, seconds] : w.operations) text += fmt::format(" {} {:.6g}", name, seconds);
  return text;
}

RankWork parse_work(const std::string& text) {
  std::istringstream in(text);
  RankWork w;
  MT_CHECK(in >> w.group >> w.step_s >> w.host, "`{}` is not the work of a rank", text);
  std::string name;
  for (double seconds = 0; in >> name >> seconds;) w.operations[name] = seconds;
  return w;
}

std::string Straggler::str() const {
  std::string text = fmt::format(
      "rank {} on {} computes at {:.2f} of the speed of ranks with equal work: {:.3g} ms in a step "
      "instead of {:.3g} ms",
      rank, host, ratio, 1e3 * step_s, 1e3 * others_s);
  if (!operation.empty())
    text += fmt::format("; most of it in {}, {:.3g} ms more", operation, 1e3 * operation_s);
  return text;
}

StragglerFinder::Check StragglerFinder::look(const std::vector<RankWork>& all) {
  slow_checks_.resize(all.size());
  Check check;
  for (size_t r = 0; r < all.size(); ++r) {
    const auto others = of_others(all, r, [](const RankWork& w) { return w.step_s; });
    if (others.empty() || all[r].step_s <= 0) continue;
    Straggler s{.rank = int(r),
                .step_s = all[r].step_s,
                .others_s = middle_of(others),
                .host = all[r].host};
    s.ratio = s.others_s / s.step_s;
    int& in_row = slow_checks_[r];
    if (s.ratio >= kSlow)
      in_row = 0;
    else if (++in_row == kInRow) {
      find_operation(all, s);
      check.found.push_back(s);
    }
    if (!check.slowest || s.ratio < check.slowest->ratio) check.slowest = std::move(s);
  }
  return check;
}

void OperationTimes::record(const device::Timing& t) {
  if (t.stream.kind != device::StreamKind::compute) return;
  const std::lock_guard lock(mutex_);
  step_ns_[t.name] += t.end_ns - t.begin_ns;
}

void OperationTimes::end_step(bool counts) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, ns] : std::exchange(step_ns_, {}))
    if (counts) ns_[name] += ns;
}

std::map<std::string, double> OperationTimes::take(int64_t steps) {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<int64_t, std::string_view>> longest;
  for (const auto& [name, ns] : std::exchange(ns_, {})) longest.emplace_back(ns, name);
  std::ranges::sort(longest, std::greater());
  constexpr size_t kMost = 8;  // the text that ranks exchange stays short
  if (longest.size() > kMost) longest.resize(kMost);
  std::map<std::string, double> out;
  for (const auto& [ns, name] : longest)
    out[std::string(name)] = double(ns) * 1e-9 / double(std::max<int64_t>(steps, 1));
  return out;
}

}  // namespace mtrain::observe
