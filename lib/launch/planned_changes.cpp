#include "launch/planned_changes.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mtrain::launch {

namespace {

int ranks_of(const std::vector<RoundMember>& members) {
  int ranks = 0;
  for (const RoundMember& m : members) ranks += m.ranks;
  return ranks;
}

}  // namespace

void PlannedChanges::begin_round() {
  due_ = false;
  slow_ranks_.clear();
  replaced_after_.reset();
  joins_after_.reset();
}

bool PlannedChanges::use_slow_hosts() {
  const bool any = !slow_.empty();
  slow_.clear();
  return any;
}

std::vector<std::string> PlannedChanges::look(const Round& round) {
  look_for_stragglers(round);
  if (!due_) look_for_joiners(round);
  return std::exchange(texts_, {});
}

void PlannedChanges::look_for_joiners(const Round& round) {
  const std::vector<LauncherNote> hosts = round.hosts();
  if (int(hosts.size()) > round.options.max_nodes) return;
  std::vector<std::string> names;
  for (const LauncherNote& h : hosts)
    if (std::ranges::none_of(round.members, [&](const RoundMember& m) { return m.id == h.id; }))
      names.push_back(host_text(h));
  const int world = names.empty() ? 0 : ranks_of(members_of_round(hosts, round.options));
  if (world <= round.world) return joins_after_.reset();
  const std::optional<int64_t> checkpoint = round.options.newest_checkpoint();
  if (!checkpoint) return;
  if (!joins_after_) {
    joins_after_ = checkpoint;
    texts_.push_back(fmt::format("{} will join at the next checkpoint", fmt::join(names, ", ")));
  }
  if (*checkpoint <= *joins_after_) return;
  due_ = true;
  texts_.push_back(fmt::format("{} join{} after the checkpoint of step {}", fmt::join(names, ", "),
                               names.size() == 1 ? "s" : "", *checkpoint));
}

void PlannedChanges::look_for_stragglers(const Round& round) {
  for (const int rank : round.slow)
    for (const RoundMember& m : round.members)
      if (rank >= m.first_rank && rank < m.first_rank + m.ranks && slow_ranks_.insert(rank).second)
        replace_host(round, m, rank);
  if (!replaced_after_) return;
  const std::optional<int64_t> checkpoint = round.options.newest_checkpoint();
  if (!checkpoint || *checkpoint <= *replaced_after_) return;
  due_ = true;
  texts_.push_back(
      fmt::format("a slow host is replaced after the checkpoint of step {}", *checkpoint));
}

void PlannedChanges::replace_host(const Round& round, const RoundMember& slow, int rank) {
  std::vector<LauncherNote> others;
  std::string host;
  for (const LauncherNote& h : round.hosts())
    if (h.id == slow.id)
      host = host_text(h);
    else
      others.push_back(h);
  if (host.empty()) return;  // it is left out already
  if (ranks_of(members_of_round(others, round.options)) < round.world) {
    texts_.push_back(fmt::format(
        "warning: rank {} on {} is too slow, and {}: the job continues with it", rank, host,
        slow.node == round.options.leader ? "the launcher of this host leads the job"
                                          : "no spare ranks can replace this host"));
    return;
  }
  slow_.insert(slow.id);
  if (!replaced_after_) replaced_after_ = round.options.newest_checkpoint().value_or(-1);
  texts_.push_back(
      fmt::format("rank {} on {} is too slow: spare ranks replace this host at the next checkpoint",
                  rank, host));
}

}  // namespace mtrain::launch
