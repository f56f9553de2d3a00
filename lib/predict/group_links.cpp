#include "predict/group_links.h"

#include <optional>

namespace mtrain::predict {

namespace {

// Returns the axes along which the ranks differ; nothing if they are not a group of the mesh.
std::optional<mesh::Axes> axes_of(const mesh::Mesh& mesh, const std::vector<int64_t>& ranks) {
  const std::vector<int64_t> first = mesh.coordinates(ranks[0]);
  std::vector<bool> differs(first.size());
  for (const int64_t rank : ranks) {
    const std::vector<int64_t> at = mesh.coordinates(rank);
    for (size_t i = 0; i < at.size(); ++i)
      if (at[i] != first[i]) differs[i] = true;
  }
  mesh::Axes axes;
  for (size_t i = 0; i < differs.size(); ++i)
    if (differs[i]) axes.push_back(mesh.axes()[i].axis);
  if (mesh.size(axes) != int64_t(ranks.size())) return {};
  return axes;
}

bool is_slower(const plan::GroupLink& a, const plan::GroupLink& b) {
  return std::pair{-a.domains, a.per_domain} < std::pair{-b.domains, b.per_domain};
}

}  // namespace

GroupLinks::GroupLinks(const RunPlan& plan, const plan::Cluster& cluster)
    : cluster_(cluster), world_(plan.layout.world), device_(plan.mesh), moe_(plan.moe_mesh()) {}

const plan::GroupLink& GroupLinks::of(const std::vector<int>& ranks) {
  const auto known = known_.find(ranks);
  if (known != known_.end()) return known->second;
  return known_.emplace(ranks, find({ranks.begin(), ranks.end()})).first->second;
}

plan::GroupLink GroupLinks::find(const std::vector<int64_t>& ranks) const {
  if (world_ > cluster_.domain_gpus)
    for (const mesh::Mesh* mesh : {&device_, &moe_})
      if (const auto axes = axes_of(*mesh, ranks)) return link_of(cluster_, *mesh, *axes);
  return link_of(cluster_, ranks);
}

plan::GroupLink GroupLinks::between_stages() const {
  const int64_t stride = device_.stride(mesh::Axis::pp), pp = device_.size(mesh::Axis::pp);
  plan::GroupLink slowest = link_of(cluster_, {0});
  for (int64_t rank = 0; rank < world_; ++rank) {
    const int64_t stage = device_.coordinate(rank, mesh::Axis::pp),
                  next = rank + ((stage + 1) % pp - stage) * stride;
    const plan::GroupLink link = link_of(cluster_, {rank, next});
    if (is_slower(link, slowest)) slowest = link;
  }
  return slowest;
}

}  // namespace mtrain::predict
