#include "predict/message_delays.h"

#include <algorithm>

namespace mtrain::predict {

namespace {

// Returns how long a rank computes between two times. Its actions are in the order of time.
double computed_between(double begin, double end, const schedule::ActionList& list,
                        const std::vector<schedule::ActionTime>& times,
                        const std::vector<double>& computing) {
  double seconds = 0;
  const auto first = std::ranges::partition_point(
      times, [&](const schedule::ActionTime& t) { return t.end <= begin; });
  for (auto i = size_t(first - times.begin()); i < times.size() && times[i].begin < end; ++i)
    if (is_compute(list[i].kind)) {
      const double common = std::min(end, times[i].end) - std::max(begin, times[i].begin);
      seconds += computing[i] * std::max(0.0, common);
    }
  return seconds;
}

}  // namespace

std::vector<std::vector<double>> message_delays(
    const schedule::Schedule& schedule, const schedule::Timeline& timeline,
    const std::map<std::pair<int64_t, int64_t>, MessageWork>& messages,
    const std::vector<std::vector<double>>& computing, double more) {
  std::vector<std::vector<double>> delays(schedule.ranks.size());
  for (size_t rank = 0; rank < delays.size(); ++rank) {
    const schedule::ActionList& list = schedule.ranks[rank];
    delays[rank].resize(list.size());
    for (const schedule::LaneTime& t : timeline.lanes[rank]) {
      if (t.lane != schedule::Lane::pp_send) continue;
      const MessageWork& m = messages.at({int64_t(rank), list[t.action].peer});
      const double end = t.end - m.after_s;
      delays[rank][t.action] =
          more * computed_between(end - m.work_s, end, list, timeline.times[rank], computing[rank]);
    }
  }
  return delays;
}

}  // namespace mtrain::predict
