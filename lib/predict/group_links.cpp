#include "predict/group_links.h"

#include <algorithm>
#include <optional>
#include <set>

namespace mtrain::predict {

namespace {

// Returns the axes along which the ranks differ; nothing if they are not a group of the mesh.
std::optional<mesh::Axes> axes_of(const mesh::Mesh& mesh, const std::vector<int64_t>& ranks) {
  mesh::Axes axes;
  for (const mesh::Mesh::AxisSize& a : mesh.axes()) {
    const int64_t first = mesh.coordinate(ranks[0], a.axis);
    if (std::ranges::any_of(ranks, [&](int64_t r) { return mesh.coordinate(r, a.axis) != first; }))
      axes.push_back(a.axis);
  }
  if (mesh.size(axes) != int64_t(ranks.size())) return {};
  return axes;
}

// Returns ranks with which the groups along `axes` begin, counted from the beginning of a domain.
// How the ranks of a group lie in domains depends on that rank alone.
std::set<int64_t> begins(const mesh::Mesh& mesh, const mesh::Axes& axes, int64_t domain) {
  std::set<int64_t> all{0};
  for (const mesh::Mesh::AxisSize& a : mesh.axes()) {
    if (std::ranges::count(axes, a.axis)) continue;
    std::set<int64_t> wider;
    for (const int64_t begin : all)
      for (int64_t k = 0; k < std::min(a.size, domain); ++k)
        wider.insert((begin + k * mesh.stride(a.axis)) % domain);
    all = std::move(wider);
  }
  return all;
}

void take_slower(plan::GroupLink& slowest, const plan::GroupLink& link) {
  if (std::pair{-link.domains, link.per_domain} < std::pair{-slowest.domains, slowest.per_domain})
    slowest = link;
}

}  // namespace

GroupLinks::GroupLinks(const RunPlan& plan, const plan::Cluster& cluster)
    : cluster_(cluster), world_(plan.layout.world), device_(plan.mesh), moe_(plan.moe_mesh()) {}

const plan::GroupLink& GroupLinks::of(const std::vector<int>& ranks) {
  const auto known = known_.find(ranks);
  if (known != known_.end()) return known->second;
  return known_.emplace(ranks, find({ranks.begin(), ranks.end()})).first->second;
}

plan::GroupLink GroupLinks::find(std::vector<int64_t> ranks) const {
  plan::GroupLink slowest = link_of(cluster_, ranks);
  if (world_ <= cluster_.domain_gpus || int64_t(ranks.size()) == world_) return slowest;
  for (const mesh::Mesh* mesh : {&device_, &moe_}) {
    const auto axes = axes_of(*mesh, ranks);
    if (!axes) continue;
    const int64_t first = ranks[0];
    for (const int64_t begin : begins(*mesh, *axes, cluster_.domain_gpus)) {
      std::vector<int64_t> group = ranks;
      for (int64_t& rank : group) rank += begin - first;
      take_slower(slowest, link_of(cluster_, group));
    }
    break;
  }
  return slowest;
}

plan::GroupLink GroupLinks::between(int64_t from, int64_t to) const {
  const int64_t stride = device_.stride(mesh::Axis::pp);
  plan::GroupLink slowest = link_of(cluster_, {from * stride, to * stride});
  for (const int64_t begin : begins(device_, {mesh::Axis::pp}, cluster_.domain_gpus))
    take_slower(slowest, link_of(cluster_, {begin + from * stride, begin + to * stride}));
  return slowest;
}

}  // namespace mtrain::predict
