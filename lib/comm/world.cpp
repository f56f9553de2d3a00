#include "comm/world.h"

#include <algorithm>
#include <mutex>

#include <fmt/ranges.h>

#include "base/error.h"

namespace mtrain::comm {

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

Group World::group(const std::string& name, const std::vector<int>& ranks, Traffic traffic) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  MT_CHECK(own != ranks.end(), "group {} without its rank {}", name, rank_);
  const std::string key = fmt::format("{}:{}", name, fmt::join(ranks, ","));
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

Group World::world_group() {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) ranks.push_back(r);
  return group("world", ranks);
}

void World::abort(std::string_view reason) noexcept {
  if (transport_) transport_->abort(reason);
  std::lock_guard lock(groups_->mutex);
  for (const auto& [key, group] : groups_->by_key) group.abort(reason);
}

}  // namespace mtrain::comm
