#include "observe/profile.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/terminal.h"
#include "base/text_table.h"

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

std::string Profile::table(int width) const {
  std::vector<std::vector<std::string>> cells;
  std::map<std::string, double> groups;
  for (const auto& r : rows()) {
    const bool compute = r.stream == kCompute;
    cells.push_back({operation(r), std::to_string(r.count),
                     fmt::format("{:.3f}", double(r.total_ns) / 1e6),
                     fmt::format("{:.1f}", double(r.total_ns) / 1e3 / double(r.count)),
                     compute ? fmt::format("{:.1f} %", 100 * r.share) : "-"});
    if (compute) groups[r.name.substr(0, r.name.find('_'))] += r.share;
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, share] : groups) order.emplace_back(share, name);
  std::ranges::sort(order, std::ranges::greater{});
  std::string busy = fmt::format("compute was busy for {:.3f} ms", double(compute_busy_ns()) / 1e6);
  for (size_t i = 0; i < order.size(); ++i)
    busy += fmt::format("{}{} {:.1f} %", i ? ", " : ": ", order[i].second, 100 * order[i].first);
  const std::vector<TableColumn> columns{{"operation", 0, TableColumn::Align::left},
                                         {"count", 10},
                                         {"total ms", 13},
                                         {"mean us", 12},
                                         {"share", 9}};
  return text_table(columns, cells, width) + wrap_words(busy, width) + "\n";
}

}  // namespace mtrain::observe
