// A Mesh arranges the ranks of a job as a grid with named axes. It is pure arithmetic: it needs no
// process, and works for any rank of any world.
//
// The same ranks form two grids: device_mesh (pp, dp_replicate, dp_shard, cp, tp) and, for the
// experts, moe_mesh (pp, dp_replicate, ep_shard, ep, tp). The moe_mesh divides the ranks of
// dp_shard x cp, or of dp_shard x cp x tp, differently. Neighbours along the last axis have
// consecutive ranks.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace mtrain::mesh {

enum class Axis { pp, dp_replicate, dp_shard, cp, tp, ep_shard, ep };
std::string_view axis_name(Axis axis);

using Axes = std::vector<Axis>;

// Axes that are used as one, named after their purpose.
Axes dp_axes();           // dp: replicas of the model that see different samples
Axes dp_shard_cp_axes();  // parameters and optimizer are sharded over them
Axes dp_cp_axes();        // gradients are reduced over them
Axes expert_copy_axes();  // of moe_mesh: gradients of experts are reduced over them

class Mesh {
 public:
  struct AxisSize {
    Axis axis;
    int64_t size;  // at least 1
  };
  explicit Mesh(std::vector<AxisSize> axes);  // outermost first, each axis once

  int64_t world() const { return world_; }
  const std::vector<AxisSize>& axes() const { return axes_; }
  int64_t size(Axis axis) const;         // BugError if the mesh does not have the axis
  int64_t size(const Axes& axes) const;  // product of their sizes
  int64_t stride(Axis axis) const;       // difference of the ranks of neighbours along the axis

  int64_t coordinate(int64_t rank, Axis axis) const;
  std::vector<int64_t> coordinates(int64_t rank) const;  // in the order of axes()
  int64_t rank_of(const std::vector<int64_t>& coordinates) const;

  // Returns, in rising order, the ranks that share with `rank` every coordinate except those of
  // `axes`.
  std::vector<int64_t> group(int64_t rank, const Axes& axes) const;
  // Returns how many ranks of that group are in [begin, end), without listing it.
  int64_t count_in_group(int64_t rank, const Axes& axes, int64_t begin, int64_t end) const;
  // Returns the position of `rank` in that group.
  int64_t index_in_group(int64_t rank, const Axes& axes) const;
  // Returns all groups along `axes`; each rank is in one of them.
  std::vector<std::vector<int64_t>> groups(const Axes& axes) const;

 private:
  std::vector<AxisSize> axes_;
  std::vector<int64_t> strides_;
  int64_t world_ = 1;
};

struct MeshSizes {
  int64_t pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1;
  int64_t ep = 1;  // divides dp_shard x cp, or dp_shard x cp x tp if undivided_experts
  // Whether tp does not divide experts: each rank of tp has complete ones.
  bool undivided_experts = false;
};
Mesh device_mesh(const MeshSizes& sizes);
// Returns the mesh of the experts. Its ep groups never span pp. By default each expert is sharded
// over tp, and ep groups do not span tp. With undivided_experts, ep_shard and ep also divide the
// ranks of tp, and this mesh's tp is 1.
Mesh moe_mesh(const MeshSizes& sizes);

// Returns the ranks that exchange with `rank` at one level of hierarchical context parallelism. A
// cp group is a grid of `sizes`, whose product is the size of cp. The groups of level 0 are
// contiguous: cp 8 as [4, 2] has {0,1,2,3} and {4,5,6,7} at level 0, and {0,4}, {1,5}, {2,6}, {3,7}
// at level 1.
std::vector<int64_t> hierarchical_cp_group(const Mesh& mesh, int64_t rank,
                                           const std::vector<int64_t>& sizes, size_t level);

}  // namespace mtrain::mesh
