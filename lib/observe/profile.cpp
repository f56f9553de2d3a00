#include "observe/profile.h"

#include <algorithm>

#include <fmt/format.h>

namespace mtrain::observe {

namespace {
constexpr device::StreamId kCompute = device::StreamKind::compute;

// Returns the name of the launch, with its stream unless that is compute.
std::string operation(const ProfileRow& r) {
  return r.stream == kCompute ? r.name : fmt::format("{} ({})", r.name, stream_name(r.stream));
}
}  // namespace

void Profile::record(const device::Timing& timing) {
  std::lock_guard lock(mutex_);
  ByName& sums = streams_[timing.stream];
  auto sum = sums.find(std::string_view(timing.name));
  if (sum == sums.end()) sum = sums.emplace(timing.name, Sum{}).first;
  ++sum->second.count;
  sum->second.total_ns += timing.end_ns - timing.begin_ns - timing.idle_ns.value_or(0);
}

int64_t Profile::compute_busy_locked() const {
  int64_t busy = 0;
  if (const auto compute = streams_.find(kCompute); compute != streams_.end())
    for (const auto& [name, sum] : compute->second) busy += sum.total_ns;
  return busy;
}

int64_t Profile::compute_busy_ns() const {
  std::lock_guard lock(mutex_);
  return compute_busy_locked();
}

std::vector<ProfileRow> Profile::rows() const {
  std::vector<ProfileRow> rows;
  {
    std::lock_guard lock(mutex_);
    const auto busy = double(compute_busy_locked());
    for (const auto& [stream, sums] : streams_) {
      for (const auto& [name, sum] : sums) {
        const double share = stream == kCompute && busy > 0 ? double(sum.total_ns) / busy : 0;
        rows.push_back({name, stream, sum.count, sum.total_ns, share});
      }
    }
  }
  std::ranges::stable_sort(rows, std::ranges::greater{}, &ProfileRow::total_ns);
  return rows;
}

void Profile::reset() {
  std::lock_guard lock(mutex_);
  streams_.clear();
}

std::string Profile::table() const {
  const auto rows = this->rows();
  size_t widest = 9;  // the width of "operation"
  for (const auto& r : rows) widest = std::max(widest, operation(r).size());
  std::string out = fmt::format("{:<{}}  {:>8}  {:>11}  {:>10}  {:>7}\n", "operation", widest,
                                "count", "total ms", "mean us", "share");
  std::map<std::string, double> groups;
  for (const auto& r : rows) {
    const bool compute = r.stream == kCompute;
    out +=
        fmt::format("{:<{}}  {:>8}  {:>11.3f}  {:>10.1f}  {:>7}\n", operation(r), widest, r.count,
                    double(r.total_ns) / 1e6, double(r.total_ns) / 1e3 / double(r.count),
                    compute ? fmt::format("{:.1f} %", 100 * r.share) : "-");
    if (compute) groups[r.name.substr(0, r.name.find('_'))] += r.share;
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, share] : groups) order.emplace_back(share, name);
  std::ranges::sort(order, std::ranges::greater{});
  out += fmt::format("compute was busy for {:.3f} ms", double(compute_busy_ns()) / 1e6);
  for (size_t i = 0; i < order.size(); ++i)
    out += fmt::format("{}{} {:.1f} %", i ? ", " : ": ", order[i].second, 100 * order[i].first);
  return out + "\n";
}

}  // namespace mtrain::observe
