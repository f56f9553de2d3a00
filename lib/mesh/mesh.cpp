#include "mesh/mesh.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"

namespace mtrain::mesh {

std::string_view axis_name(Axis axis) {
  switch (axis) {
    case Axis::pp: return "pp";
    case Axis::dp_replicate: return "dp_replicate";
    case Axis::dp_shard: return "dp_shard";
    case Axis::cp: return "cp";
    case Axis::tp: return "tp";
    case Axis::ep_shard: return "ep_shard";
    case Axis::ep: return "ep";
  }
  return "?";
}

Axes dp_axes() { return {Axis::dp_replicate, Axis::dp_shard}; }
Axes dp_shard_cp_axes() { return {Axis::dp_shard, Axis::cp}; }
Axes dp_cp_axes() { return {Axis::dp_replicate, Axis::dp_shard, Axis::cp}; }
Axes expert_copy_axes() { return {Axis::dp_replicate, Axis::ep_shard}; }

Mesh::Mesh(std::vector<AxisSize> axes) : axes_(std::move(axes)), strides_(axes_.size()) {
  for (size_t i = axes_.size(); i-- > 0;) {
    MT_CHECK(axes_[i].size >= 1, "mesh: {} of size {}", axis_name(axes_[i].axis), axes_[i].size);
    strides_[i] = world_;
    world_ *= axes_[i].size;
  }
}

namespace {
size_t index_of(const std::vector<Mesh::AxisSize>& axes, Axis axis) {
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i].axis == axis) return i;
  throw BugError(fmt::format("this mesh has no axis {}", axis_name(axis)));
}
}  // namespace

int64_t Mesh::size(Axis axis) const { return axes_[index_of(axes_, axis)].size; }

int64_t Mesh::size(const Axes& axes) const {
  int64_t product = 1;
  for (const Axis axis : axes) product *= size(axis);
  return product;
}

int64_t Mesh::stride(Axis axis) const { return strides_[index_of(axes_, axis)]; }

int64_t Mesh::coordinate(int64_t rank, Axis axis) const {
  MT_CHECK(rank >= 0 && rank < world_, "rank {} of a mesh of {}", rank, world_);
  return rank / stride(axis) % size(axis);
}

std::vector<int64_t> Mesh::coordinates(int64_t rank) const {
  std::vector<int64_t> at;
  for (const AxisSize& d : axes_) at.push_back(coordinate(rank, d.axis));
  return at;
}

int64_t Mesh::rank_of(const std::vector<int64_t>& coordinates) const {
  MT_CHECK(coordinates.size() == axes_.size(), "{} coordinates for a mesh of {} axes",
           coordinates.size(), axes_.size());
  int64_t rank = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    MT_CHECK(coordinates[i] >= 0 && coordinates[i] < axes_[i].size, "{} {} of {}",
             axis_name(axes_[i].axis), coordinates[i], axes_[i].size);
    rank += coordinates[i] * strides_[i];
  }
  return rank;
}

std::vector<int64_t> Mesh::group(int64_t rank, const Axes& axes) const {
  std::vector<int64_t> ranks{rank};
  for (const Axis axis : axes) ranks[0] -= coordinate(rank, axis) * stride(axis);
  // The outermost axis comes first: the ranks are then in rising order.
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (std::find(axes.begin(), axes.end(), axes_[i].axis) == axes.end()) continue;
    std::vector<int64_t> wider;
    wider.reserve(ranks.size() * size_t(axes_[i].size));
    for (const int64_t first : ranks)
      for (int64_t k = 0; k < axes_[i].size; ++k) wider.push_back(first + k * strides_[i]);
    ranks = std::move(wider);
  }
  return ranks;
}

namespace {

// An axis of a group, and by how much the last of the ranks along the axes inside it exceeds the
// first, with their number.
struct GroupAxis {
  int64_t size, stride, inner_span, inner_count;
};

// Counts the ranks in [begin, end) of the group along `axes` from the i-th one on, which begins at
// `first`.
int64_t count_in_range(const std::vector<GroupAxis>& axes, size_t i, int64_t first, int64_t begin,
                       int64_t end) {
  if (i == axes.size()) return first >= begin && first < end;
  const auto& [size, stride, inner_span, inner_count] = axes[i];
  if (end <= first) return 0;
  int64_t count = 0;
  const int64_t low = std::max<int64_t>(0, ceil_div(begin - first - inner_span, stride)),
                high = std::min(size - 1, (end - 1 - first) / stride);
  for (int64_t k = low; k <= high; ++k) {
    const int64_t from = first + k * stride;
    count += from >= begin && from + inner_span < end
                 ? inner_count
                 : count_in_range(axes, i + 1, from, begin, end);
  }
  return count;
}

}  // namespace

int64_t Mesh::count_in_group(int64_t rank, const Axes& axes, int64_t begin, int64_t end) const {
  std::vector<GroupAxis> of_group;
  int64_t first = rank;
  for (const AxisSize& a : axes_)
    if (std::find(axes.begin(), axes.end(), a.axis) != axes.end()) {
      first -= coordinate(rank, a.axis) * stride(a.axis);
      of_group.push_back({a.size, stride(a.axis), 0, 1});
    }
  for (size_t i = of_group.size(); i-- > 1;) {
    const GroupAxis& inner = of_group[i];
    of_group[i - 1].inner_span = inner.inner_span + (inner.size - 1) * inner.stride;
    of_group[i - 1].inner_count = inner.inner_count * inner.size;
  }
  return count_in_range(of_group, 0, first, begin, end);
}

int64_t Mesh::index_in_group(int64_t rank, const Axes& axes) const {
  int64_t index = 0;
  for (const AxisSize& d : axes_)
    if (std::find(axes.begin(), axes.end(), d.axis) != axes.end())
      index = index * d.size + coordinate(rank, d.axis);
  return index;
}

std::vector<std::vector<int64_t>> Mesh::groups(const Axes& axes) const {
  std::vector<std::vector<int64_t>> all;
  for (int64_t rank = 0; rank < world_; ++rank)
    if (index_in_group(rank, axes) == 0) all.push_back(group(rank, axes));
  return all;
}

Mesh device_mesh(const MeshSizes& s) {
  return Mesh({{Axis::pp, s.pp},
               {Axis::dp_replicate, s.dp_replicate},
               {Axis::dp_shard, s.dp_shard},
               {Axis::cp, s.cp},
               {Axis::tp, s.tp}});
}

Mesh moe_mesh(const MeshSizes& s) {
  const int64_t tp = s.undivided_experts ? 1 : s.tp;
  return Mesh({{Axis::pp, s.pp},
               {Axis::dp_replicate, s.dp_replicate},
               {Axis::ep_shard, exact_div(s.dp_shard * s.cp * (s.tp / tp), s.ep)},
               {Axis::ep, s.ep},
               {Axis::tp, tp}});
}

std::vector<int64_t> hierarchical_cp_group(const Mesh& mesh, int64_t rank,
                                           const std::vector<int64_t>& sizes, size_t level) {
  MT_CHECK(level < sizes.size(), "level {} of {}", level, sizes.size());
  const std::vector<int64_t> cp = mesh.group(rank, {Axis::cp});
  int64_t stride = 1, product = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i < level) stride *= sizes[i];
    product *= sizes[i];
  }
  MT_CHECK(product == int64_t(cp.size()), "hierarchical sizes of product {} for cp {}", product,
           cp.size());
  const int64_t at = mesh.coordinate(rank, Axis::cp);
  const int64_t first = at - at / stride % sizes[level] * stride;
  std::vector<int64_t> ranks;
  for (int64_t k = 0; k < sizes[level]; ++k) ranks.push_back(cp[size_t(first + k * stride)]);
  return ranks;
}

}  // namespace mtrain::mesh
