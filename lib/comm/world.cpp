#include "comm/world.h"

#include <algorithm>
#include <mutex>

#include <fmt/format.h>

#include "base/error.h"

namespace mtrain::comm {

namespace {

// The name of a group among all groups of a job: "tp:0,1". Plans have groups of thousands of ranks.
std::string key_of(const std::string& name, const std::vector<int>& ranks) {
  std::string key = name + ":";
  const size_t begin = key.size();
  for (const int rank : ranks) {
    if (key.size() > begin) key += ',';
    const fmt::format_int digits(rank);
    key.append(digits.data(), digits.size());
  }
  return key;
}

}  // namespace

struct World::Groups {
  std::mutex mutex;  // other threads may call abort()
  std::map<std::string, Group> by_key;
};

World::World(int rank, int size, std::shared_ptr<Transport> transport, Link link)
    : rank_(rank),
      size_(size),
      transport_(std::move(transport)),
      link_(link.emulated() ? std::make_shared<EmulatedLink>(link) : nullptr),
      groups_(std::make_shared<Groups>()) {
  MT_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  MT_CHECK(transport_ || size == 1, "{} ranks need a transport", size);
}

World World::alone() { return {0, 1, nullptr}; }

void World::connect(const std::vector<mesh::GroupSplit>& splits) {
  if (size_ == 1) return;
  std::vector<mesh::GroupSplit> named = splits;
  for (mesh::GroupSplit& s : named) s.name = key_of(s.name, s.ranks);
  const auto ends = transport_->connect_all(named);
  if (ends.empty()) return;
  MT_CHECK(ends.size() == splits.size(), "{} groups of {} splits", ends.size(), splits.size());
  std::lock_guard lock(groups_->mutex);
  for (size_t i = 0; i < ends.size(); ++i) {
    if (!ends[i]) continue;
    const std::vector<int>& ranks = splits[i].ranks;
    const int rank = int(std::ranges::find(ranks, rank_) - ranks.begin());
    groups_->by_key.emplace(named[i].name, Group(splits[i].name, ranks, rank, ends[i], link_));
  }
}

std::vector<std::string> World::group_names() const {
  std::lock_guard lock(groups_->mutex);
  std::vector<std::string> names;
  for (const auto& [key, group] : groups_->by_key)
    if (group.size() > 1) names.push_back(key);
  return names;
}

Group World::group(const std::string& name, const std::vector<int>& ranks, Traffic traffic) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  MT_CHECK(own != ranks.end(), "group {} without its rank {}", name, rank_);
  const std::string key = key_of(name, ranks);
  {
    std::lock_guard lock(groups_->mutex);
    if (const auto found = groups_->by_key.find(key); found != groups_->by_key.end())
      return found->second;
  }
  const int rank = int(own - ranks.begin());
  std::shared_ptr<Communicator> communicator;
  if (ranks.size() > 1) communicator = transport_->connect(key, ranks, rank, traffic);
  const Group group(name, ranks, rank, std::move(communicator), link_);
  std::lock_guard lock(groups_->mutex);
  return groups_->by_key.emplace(key, group).first->second;
}

Group World::group(const std::string& name, const mesh::Mesh& mesh, const mesh::Axes& axes,
                   Traffic traffic) {
  MT_CHECK(mesh.world() == size_, "a mesh of {} ranks in a world of {}", mesh.world(), size_);
  std::vector<int> ranks;
  for (const int64_t r : mesh.group(rank_, axes)) ranks.push_back(int(r));
  return group(name, ranks, traffic);
}

Group World::world_group(Traffic traffic) {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) ranks.push_back(r);
  return group("world", ranks, traffic);
}

void World::abort(std::string_view reason) noexcept {
  if (transport_) transport_->abort(reason);
  std::lock_guard lock(groups_->mutex);
  for (const auto& [key, group] : groups_->by_key) group.abort(reason);
}

}  // namespace mtrain::comm
