#include "run/local_choice.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>

#include "base/strings.h"

namespace mtrain::run {

namespace {

struct Copy {
  size_t ranks = 0;
  std::map<int, int> host_of;  // by rank
};

}  // namespace

// A line "<name of the part> <ranks>" for each part.
std::string host_parts_text(const std::vector<HostPart>& parts) {
  std::string text;
  for (const HostPart& p : parts) text += fmt::format("{} {}\n", p.name.text(), p.ranks);
  return text;
}

std::vector<HostPart> parse_host_parts(const std::string& text) {
  std::vector<HostPart> parts;
  for (const std::string& line : split(text, '\n')) {
    const size_t blank = line.find(' ');
    if (blank == std::string::npos) continue;
    HostPart part;
    const auto name = storage::parse_part_name(std::string_view(line).substr(0, blank));
    const auto [end, error] =
        std::from_chars(line.data() + blank + 1, line.data() + line.size(), part.ranks);
    if (!name || error != std::errc() || part.ranks < 1) continue;
    part.name = *name;
    parts.push_back(part);
  }
  return parts;
}

std::optional<LocalChoice> newest_copy(const std::vector<std::vector<HostPart>>& hosts,
                                       int64_t after, const std::set<CopyId>& refused) {
  std::map<CopyId, Copy> copies;
  for (size_t host = 0; host < hosts.size(); ++host)
    for (const HostPart& p : hosts[host]) {
      Copy& copy = copies[{p.name.step, p.name.start}];
      copy.ranks = std::max(copy.ranks, size_t(p.ranks));
      copy.host_of.emplace(p.name.rank, int(host));
    }
  for (auto at = copies.rbegin(); at != copies.rend(); ++at) {
    const auto& [id, copy] = *at;
    if (id.first <= after) return std::nullopt;
    LocalChoice choice{.id = id, .host_of = {}};
    // The ranks are in order: the first one that is missing ends the list.
    for (const auto& [rank, host] : copy.host_of)
      if (size_t(rank) == choice.host_of.size()) choice.host_of.push_back(host);
    if (choice.host_of.size() == copy.ranks && !refused.contains(id)) return choice;
  }
  return std::nullopt;
}

std::vector<int> fetch_order(const std::vector<int>& host_of, int own, int hosts) {
  std::vector<int> order(host_of.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int rank) {
    return (host_of[size_t(rank)] - own - 1 + 2 * hosts) % hosts;  // this host itself is the last
  });
  return order;
}

std::vector<std::vector<int>> replica_ranks(const std::vector<std::string>& hosts, int replicas) {
  std::vector<std::vector<int>> of_host;  // the ranks of each host, in the order of first ranks
  std::vector<size_t> host_of, number;
  std::vector<std::string> names;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto known = std::ranges::find(names, hosts[rank]);
    const auto host = size_t(known - names.begin());
    if (known == names.end()) {
      names.push_back(hosts[rank]);
      of_host.emplace_back();
    }
    host_of.push_back(host);
    number.push_back(of_host[host].size());
    of_host[host].push_back(int(rank));
  }
  const size_t most = std::min(size_t(std::max(replicas, 0)), names.size() - 1);
  std::vector<std::vector<int>> to(hosts.size());
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    for (size_t k = 1; k <= most; ++k) {
      const std::vector<int>& others = of_host[(host_of[rank] + k) % names.size()];
      to[rank].push_back(others[number[rank] % others.size()]);
    }
  return to;
}

}  // namespace mtrain::run
