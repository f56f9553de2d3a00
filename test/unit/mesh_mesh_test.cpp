// Tests the mesh over random layouts: groups partition the world, coordinates round-trip, and
// flattened axes agree.
#include <algorithm>
#include <random>
#include <set>

#include <catch2/catch.hpp>

#include "mesh/mesh.h"

namespace mesh_mesh_test {

using namespace mtrain;
using namespace mtrain::mesh;
using Ranks = std::vector<int64_t>;

namespace {

struct Layouts {
  std::mt19937_64 dice{20240607};
  int64_t pick(std::initializer_list<int64_t> from) {
    return *(from.begin() + int64_t(dice() % from.size()));
  }
  MeshSizes next() {
    MeshSizes s{.pp = pick({1, 2, 3, 4}),
                .dp_replicate = pick({1, 2, 3}),
                .dp_shard = pick({1, 2, 4, 5}),
                .cp = pick({1, 2, 4}),
                .tp = pick({1, 2, 3, 8})};
    const int64_t ranks = s.dp_shard * s.cp;
    do s.ep = pick({1, 2, 3, 4, 5, 8, ranks});
    while (ranks % s.ep != 0);
    return s;
  }
};

void check_partition(const Mesh& mesh, const Axes& axes) {
  std::set<int64_t> seen;
  const auto groups = mesh.groups(axes);
  CHECK(int64_t(groups.size()) * mesh.size(axes) == mesh.world());
  for (const auto& group : groups) {
    REQUIRE(int64_t(group.size()) == mesh.size(axes));
    CHECK(std::is_sorted(group.begin(), group.end()));
    for (size_t i = 0; i < group.size(); ++i) {
      REQUIRE(seen.insert(group[i]).second);  // in one group only
      REQUIRE(mesh.group(group[i], axes) == group);
      REQUIRE(mesh.index_in_group(group[i], axes) == int64_t(i));
    }
  }
  CHECK(int64_t(seen.size()) == mesh.world());
}

}  // namespace

TEST_CASE("groups along every axis and every flattened axis partition the world") {
  Layouts layouts;
  for (int i = 0; i < 60; ++i) {
    const MeshSizes s = layouts.next();
    const Mesh device = device_mesh(s), moe = moe_mesh(s);
    CAPTURE(s.pp, s.dp_replicate, s.dp_shard, s.cp, s.tp, s.ep);
    REQUIRE(device.world() == s.pp * s.dp_replicate * s.dp_shard * s.cp * s.tp);
    REQUIRE(moe.world() == device.world());
    for (const Mesh* mesh : {&device, &moe})
      for (const auto& d : mesh->axes()) check_partition(*mesh, {d.axis});
    for (const Axes& axes : {dp_axes(), dp_shard_cp_axes(), dp_cp_axes()})
      check_partition(device, axes);
  }
}

TEST_CASE("coordinates round-trip, and neighbours differ by the stride") {
  Layouts layouts;
  for (int i = 0; i < 60; ++i) {
    const MeshSizes s = layouts.next();
    for (const Mesh& mesh : {device_mesh(s), moe_mesh(s)})
      for (int64_t rank = 0; rank < mesh.world(); ++rank) {
        const auto at = mesh.coordinates(rank);
        REQUIRE(mesh.rank_of(at) == rank);
        for (size_t d = 0; d < at.size(); ++d) {
          if (at[d] + 1 == mesh.axes()[d].size) continue;
          auto next = at;
          ++next[d];
          REQUIRE(mesh.rank_of(next) - rank == mesh.stride(mesh.axes()[d].axis));
        }
      }
  }
}

TEST_CASE("a flattened group is the union of the groups that it flattens") {
  Layouts layouts;
  for (int i = 0; i < 30; ++i) {
    const Mesh mesh = device_mesh(layouts.next());
    for (int64_t rank = 0; rank < mesh.world(); rank += 7) {
      std::set<int64_t> walked;
      for (const int64_t r : mesh.group(rank, {Axis::dp_replicate}))
        for (const int64_t q : mesh.group(r, {Axis::dp_shard}))
          for (const int64_t p : mesh.group(q, {Axis::cp})) walked.insert(p);
      const Ranks flat = mesh.group(rank, dp_cp_axes());
      REQUIRE(Ranks(walked.begin(), walked.end()) == flat);
    }
  }
}

TEST_CASE("experts spread over the dp x cp ranks of one stage and one tp index") {
  Layouts layouts;
  for (int i = 0; i < 60; ++i) {
    const MeshSizes s = layouts.next();
    const Mesh device = device_mesh(s), moe = moe_mesh(s);
    for (int64_t rank = 0; rank < device.world(); ++rank) {
      const Ranks own = device.group(rank, dp_cp_axes());
      // ep and ep_shard divide the ranks of one replica.
      const Ranks replica = device.group(rank, dp_shard_cp_axes());
      REQUIRE(moe.group(rank, {Axis::ep_shard, Axis::ep}) == replica);
      REQUIRE(moe.group(rank, {Axis::dp_replicate}) == device.group(rank, {Axis::dp_replicate}));
      // The replicas of its experts and the ranks of its ep group together are all ranks of the
      // stage.
      Ranks reached;
      for (const int64_t copy : moe.group(rank, expert_copy_axes()))
        for (const int64_t other : moe.group(copy, {Axis::ep})) reached.push_back(other);
      std::sort(reached.begin(), reached.end());
      REQUIRE(reached == own);
    }
  }
}

TEST_CASE("whole experts spread over the dp x cp x tp ranks of one stage") {
  Layouts layouts;
  for (int i = 0; i < 60; ++i) {
    MeshSizes s = layouts.next();
    s.ep *= s.tp, s.undivided_experts = true;
    const Mesh device = device_mesh(s), moe = moe_mesh(s);
    REQUIRE(moe.world() == device.world());
    REQUIRE(moe.size(Axis::tp) == 1);
    for (int64_t rank = 0; rank < device.world(); ++rank) {
      // ep and ep_shard divide the ranks of one replica, with tp's.
      REQUIRE(moe.group(rank, {Axis::ep_shard, Axis::ep}) ==
              device.group(rank, {Axis::dp_shard, Axis::cp, Axis::tp}));
      REQUIRE(moe.group(rank, {Axis::dp_replicate}) == device.group(rank, {Axis::dp_replicate}));
    }
  }
  const Mesh moe = moe_mesh({.dp_shard = 2, .tp = 4, .ep = 2, .undivided_experts = true});
  CHECK(moe.group(5, {Axis::ep}) == Ranks{4, 5});
  CHECK(moe.group(5, {Axis::ep_shard}) == Ranks{1, 3, 5, 7});
}

TEST_CASE("the documented order: tp is fastest, then cp, dp, pp") {
  const MeshSizes s{.pp = 2, .dp_shard = 2, .cp = 2, .tp = 2, .ep = 4};
  const Mesh mesh = device_mesh(s);
  CHECK(mesh.group(5, {Axis::tp}) == Ranks{4, 5});
  CHECK(mesh.group(5, {Axis::cp}) == Ranks{5, 7});
  CHECK(mesh.group(5, dp_axes()) == Ranks{1, 5});
  CHECK(mesh.group(5, {Axis::pp}) == Ranks{5, 13});
  CHECK(mesh.group(5, dp_cp_axes()) == Ranks{1, 3, 5, 7});
  CHECK(moe_mesh(s).group(5, {Axis::ep}) == Ranks{1, 3, 5, 7});
}

TEST_CASE("hierarchical context-parallel groups") {
  const Mesh mesh = device_mesh({.cp = 8});
  CHECK(hierarchical_cp_group(mesh, 0, {4, 2}, 0) == Ranks{0, 1, 2, 3});
  CHECK(hierarchical_cp_group(mesh, 6, {4, 2}, 0) == Ranks{4, 5, 6, 7});
  CHECK(hierarchical_cp_group(mesh, 6, {4, 2}, 1) == Ranks{2, 6});
  // In units of cp neighbours, whatever is between them.
  const Mesh with_tp = device_mesh({.dp_shard = 2, .cp = 4, .tp = 2});
  CHECK(hierarchical_cp_group(with_tp, 1, {2, 2}, 0) == Ranks{1, 3});
  CHECK(hierarchical_cp_group(with_tp, 1, {2, 2}, 1) == Ranks{1, 5});
  CHECK(hierarchical_cp_group(with_tp, 11, {2, 2}, 1) == Ranks{11, 15});
  // Each level partitions the cp group.
  for (const size_t level : {0u, 1u, 2u})
    for (int64_t rank = 0; rank < 8; ++rank) {
      const Ranks group = hierarchical_cp_group(mesh, rank, {2, 2, 2}, level);
      CHECK(std::find(group.begin(), group.end(), rank) != group.end());
      for (const int64_t other : group)
        CHECK(hierarchical_cp_group(mesh, other, {2, 2, 2}, level) == group);
    }
}

}  // namespace mesh_mesh_test
