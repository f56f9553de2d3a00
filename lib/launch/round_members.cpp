#include "launch/round_members.h"

#include <algorithm>

#include <fmt/format.h>

namespace mtrain::launch {

std::string host_text(const LauncherNote& n) { return fmt::format("host {} ({})", n.node, n.host); }

std::string line_of(const std::string& text) { return "mtrain-launch: " + text; }

std::vector<RoundMember> members_of_round(const std::vector<LauncherNote>& hosts,
                                          const LeaderOptions& options) {
  // The leader's host serves the store, and rank 0 is there.
  const auto leader = std::ranges::find(hosts, options.leader, &LauncherNote::node);
  if (leader == hosts.end() || int(hosts.size()) < options.min_nodes) return {};
  int ranks = 0;
  for (const LauncherNote& h : hosts) ranks += h.ranks;
  int left = options.largest_world(ranks);
  if (left <= 0) return {};
  std::vector<LauncherNote> ordered(hosts);
  std::rotate(ordered.begin(), ordered.begin() + (leader - hosts.begin()),
              ordered.begin() + (leader - hosts.begin()) + 1);
  std::vector<RoundMember> members;
  int first = 0;
  for (const LauncherNote& h : ordered) {
    const int own = std::min(left, h.ranks);
    members.push_back({.node = h.node, .id = h.id, .first_rank = first, .ranks = own});
    first += own;
    left -= own;
  }
  return members;
}

}  // namespace mtrain::launch
