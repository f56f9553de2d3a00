#include "run/local_need.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/strings.h"
#include "plan/options/train_options.h"
#include "run/local_choice.h"

namespace mtrain::run {

namespace {

// The smaller one of two amounts, of which -1 is unknown.
int64_t less_known(int64_t a, int64_t b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

}  // namespace

std::vector<LocalNeed> needs_of_hosts(const std::vector<RankNeed>& ranks, int replicas) {
  std::vector<std::string> names;
  for (const RankNeed& r : ranks) names.push_back(r.host);
  const auto copies = replica_ranks(names, replicas);
  const bool sends =
      std::ranges::any_of(copies, [](const std::vector<int>& to) { return !to.empty(); });
  const int64_t steps = plan::LocalCopyOptions::kept_steps(sends ? replicas : 0);
  std::vector<LocalNeed> hosts;
  const auto host_of = [&](const std::string& name) -> LocalNeed& {
    const auto known = std::ranges::find(hosts, name, &LocalNeed::host);
    return known != hosts.end() ? *known : hosts.emplace_back(LocalNeed{.host = name});
  };
  for (const RankNeed& r : ranks) {
    LocalNeed& own = host_of(r.host);
    own.parts += steps * r.part;
    own.staged += r.staged;
    own.in_memory = own.in_memory || r.in_memory;
    own.memory = less_known(own.memory, r.memory);
    own.room = less_known(own.room, r.room);
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const int to : copies[rank]) host_of(names[size_t(to)]).parts += steps * ranks[rank].part;
  return hosts;
}

std::string refusal(const std::vector<LocalNeed>& hosts, int64_t most) {
  const auto size = [](int64_t bytes) { return human_bytes(double(bytes)); };
  for (const LocalNeed& h : hosts) {
    if (most > 0 && h.bytes() > most)
      return fmt::format(
          "copies take {} on {}, with what is copied in memory, and checkpoint.local.max_gib "
          "allows {}",
          size(h.bytes()), h.host, size(most));
    // A tenth of the memory is left to others.
    if (h.memory >= 0 && double(h.bytes_of_memory()) > 0.9 * double(h.memory))
      return fmt::format("copies take {} of memory on {}, which has {} left",
                         size(h.bytes_of_memory()), h.host, size(h.memory));
    if (h.room >= 0 && h.parts > h.room)
      return fmt::format("copies take {} in the folder on {}, which has {} left", size(h.parts),
                         h.host, size(h.room));
  }
  return "";
}

}  // namespace mtrain::run
