#include "predict/message_delays.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "predict/longer_work.h"

namespace mtrain::predict {

namespace {

// When a rank computes, in the order of its actions, which is that of time.
struct RankComputing {
  std::vector<ComputingTime> times;
  std::vector<size_t> actions;  // of `times`
};

RankComputing computing_of(const schedule::ActionList& list,
                           const std::vector<schedule::ActionTime>& times,
                           const std::vector<double>& shares) {
  RankComputing computing;
  for (size_t i = 0; i < list.size(); ++i)
    if (is_compute(list[i].kind) && times[i].end > times[i].begin) {
      computing.times.push_back({times[i].begin, times[i].end, shares[i]});
      computing.actions.push_back(i);
    }
  return computing;
}

}  // namespace

std::vector<std::vector<double>> message_delays(
    const schedule::Schedule& schedule, const schedule::Timeline& timeline,
    const std::map<std::pair<int64_t, int64_t>, MessageWork>& messages,
    const std::vector<std::vector<double>>& computing, double more) {
  std::vector<std::vector<double>> delays(schedule.ranks.size());
  for (size_t rank = 0; rank < delays.size(); ++rank) {
    const schedule::ActionList& list = schedule.ranks[rank];
    const std::vector<schedule::ActionTime>& times = timeline.times[rank];
    const RankComputing of_rank = computing_of(list, times, computing[rank]);
    delays[rank].resize(list.size());
    for (const schedule::LaneTime& t : timeline.lanes[rank]) {
      if (t.lane != schedule::Lane::pp_send) continue;
      const MessageWork& m = messages.at({int64_t(rank), list[t.action].peer});
      std::span<const ComputingTime> beside = of_rank.times;
      // The actions after a send that the rank waits for are not beside it, however long it takes.
      if (times[t.action].end > times[t.action].begin)
        beside = beside.first(
            size_t(std::ranges::lower_bound(of_rank.actions, t.action) - of_rank.actions.begin()));
      delays[rank][t.action] = longer_beside(t.end - m.after_s - m.work_s, m.work_s, beside, more);
    }
  }
  return delays;
}

std::vector<std::vector<double>> delays_of_receives(
    const schedule::Schedule& schedule, const std::vector<std::vector<double>>& delays) {
  std::map<std::tuple<bool, int64_t, int64_t>, double> of_message;  // by receiving stage
  for (size_t rank = 0; rank < delays.size(); ++rank)
    for (size_t i = 0; i < delays[rank].size(); ++i)
      if (const schedule::Action& a = schedule.ranks[rank][i]; is_send(a.kind)) {
        const bool back = a.kind == schedule::ActionKind::send_b;
        of_message[{back, a.stage + (back ? -1 : 1), a.micro_batch}] = delays[rank][i];
      }
  std::vector<std::vector<double>> received(delays.size());
  for (size_t rank = 0; rank < delays.size(); ++rank)
    for (const schedule::Action& a : schedule.ranks[rank])
      received[rank].push_back(
          is_receive(a.kind)
              ? of_message.at({a.kind == schedule::ActionKind::recv_b, a.stage, a.micro_batch})
              : 0);
  return received;
}

}  // namespace mtrain::predict
