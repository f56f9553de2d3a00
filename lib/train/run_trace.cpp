#include "train/run_trace.h"

#include <chrono>

#include <fmt/format.h>

namespace mtrain {

namespace fs = std::filesystem;

namespace {
template <class Clock>
int64_t now_ns() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}
}  // namespace

RunTrace::RunTrace(Trainer& trainer, fs::path path)
    : trainer_(trainer), path_(std::move(path)), trace_(trainer.world().rank()) {
  // Launches are timed by each host's steady clock; what hosts share is the time of day.
  const int64_t day = now_ns<std::chrono::system_clock>(),
                steady = now_ns<std::chrono::steady_clock>();
  const int64_t origin =
      trainer_.data_parallel().sum_on_host({trainer_.world().rank() == 0 ? day : 0})[0];
  trace_.set_origin(steady - (day - origin));
}

fs::path RunTrace::part_of(int rank) const {
  return path_.string() + fmt::format(".rank-{}", rank);
}

std::string RunTrace::finish() {
  const int ranks = trainer_.world().size(), rank = trainer_.world().rank();
  trace_.write(ranks == 1 ? path_ : part_of(rank));
  trainer_.any_rank(false);  // all are written
  if (rank != 0) return "";
  if (ranks == 1) return fmt::format("trace written to {}", path_.string());
  std::vector<fs::path> parts;
  for (int r = 0; r < ranks; ++r)
    if (fs::exists(part_of(r))) parts.push_back(part_of(r));
  merge_traces(path_, parts);
  for (const fs::path& part : parts) fs::remove(part);
  const bool all = int(parts.size()) == ranks;
  return fmt::format("trace of {} rank{} written to {}{}", parts.size(),
                     parts.size() > 1 ? "s" : "", path_.string(),
                     all ? ""
                         : fmt::format("; those of other hosts lie there as {}",
                                       part_of(ranks - 1).filename().string()));
}

}  // namespace mtrain
