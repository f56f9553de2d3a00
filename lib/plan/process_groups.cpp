#include "plan/process_groups.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/math.h"
#include "plan/expert_traffic.h"
#include "plan/run_plan.h"

namespace mtrain::plan {

namespace {

using mesh::Axis;
using mesh::CountedSplit;
using mesh::GroupSplit;
using Channel = std::pair<int64_t, int64_t>;

constexpr int kAlone = -1;  // a split without a parent

std::vector<int> narrow_ranks(const std::vector<int64_t>& ranks) {
  return {ranks.begin(), ranks.end()};
}

// The ranks of a group: those along axes of a mesh, or a list without a mesh.
struct Members {
  const mesh::Mesh* mesh = nullptr;
  mesh::Axes axes = {};
  std::vector<int> listed = {};

  std::vector<int> list(int64_t rank) const {
    return mesh ? narrow_ranks(mesh->group(rank, axes)) : listed;
  }
  int64_t count() const { return mesh ? mesh->size(axes) : int64_t(listed.size()); }
  // How many of them are in [begin, end).
  int64_t count_in(int64_t rank, int64_t begin, int64_t end) const {
    if (mesh) return mesh->count_in_group(rank, axes, begin, end);
    return std::ranges::count_if(listed, [&](int r) { return r >= begin && r < end; });
  }
};

// A split whose ranks are not listed yet.
struct Split {
  std::string name;
  GroupTraffic traffic;
  Members members;
  int parent;
};

// Divides the channels into few classes, so that no rank has two channels of a class. A class is
// one split.
std::vector<std::vector<Channel>> classes_of(const std::set<Channel>& channels) {
  std::vector<std::vector<Channel>> classes;
  const auto meet = [](const Channel& a, const Channel& b) {
    return a.first == b.first || a.first == b.second || a.second == b.first || a.second == b.second;
  };
  for (const Channel& c : channels) {
    const auto free = std::ranges::find_if(classes, [&](const std::vector<Channel>& taken) {
      return std::ranges::none_of(taken, [&](const Channel& t) { return meet(c, t); });
    });
    if (free == classes.end())
      classes.push_back({c});
    else
      free->push_back(c);
  }
  return classes;
}

// The order of the calls is that of the list; a parent comes before what it contains.
class Groups {
 public:
  Groups(const RunPlan& plan, int64_t rank)
      : plan_(plan), l_(plan.layout), moe_(plan.moe_mesh()), rank_(rank) {
    if (l_.world == 1) return;
    mesh::Axes all;
    for (const mesh::Mesh::AxisSize& a : plan_.mesh.axes()) all.push_back(a.axis);
    along("world", plan_.mesh, all, kAlone, GroupTraffic::scalars);
    tensor();
    if (plan_.model.experts()) experts();
    context();
    pipeline();
    data();
  }
  // Members refer to this object's mesh.
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  const std::vector<Split>& splits() const { return splits_; }

 private:
  int add(std::string name, Members members, GroupTraffic traffic, int parent) {
    splits_.push_back({std::move(name), traffic, std::move(members), parent});
    return int(splits_.size()) - 1;
  }
  int add(std::string name, std::vector<int> ranks, GroupTraffic traffic = GroupTraffic::bulk,
          int parent = kAlone) {
    return add(std::move(name), Members{.listed = std::move(ranks)}, traffic, parent);
  }
  // The groups along axes of a mesh. Groups of one rank need no split.
  int along(const char* name, const mesh::Mesh& mesh, const mesh::Axes& axes, int parent = kAlone,
            GroupTraffic traffic = GroupTraffic::bulk) {
    if (mesh.size(axes) == 1) return kAlone;
    return add(name, Members{.mesh = &mesh, .axes = axes}, traffic, parent);
  }
  std::vector<int> ranks_of(int split) const { return splits_[size_t(split)].members.list(rank_); }

  void tensor() {
    if (l_.tp == 1) return;
    const int tp = along("tp", plan_.mesh, {Axis::tp});
    const int64_t kv = plan_.model.layer(0).grouped().kv_heads;
    if (kv >= l_.tp || kv == 1) return;
    const auto replicas = size_t(exact_div(l_.tp, kv));
    const std::vector<int> ranks = ranks_of(tp);
    const auto own = size_t(plan_.mesh.index_in_group(rank_, {Axis::tp}));
    const auto first = ranks.begin() + std::ptrdiff_t(own / replicas * replicas);
    add("tp_kv", std::vector<int>(first, first + std::ptrdiff_t(replicas)), GroupTraffic::bulk, tp);
  }

  void experts() {
    const bool divided = l_.tp > 1 && !l_.undivided_experts();
    const bool other_tokens = divided && plan_.tensor.sequence_parallel;
    if (l_.cp > 1 && l_.tp > 1 && plan_.tensor.sequence_parallel)
      along("cp_tp", plan_.mesh, {Axis::cp, Axis::tp});
    if (l_.ep == 1 && !other_tokens) return;
    int all = kAlone;
    if (other_tokens) {
      all = along("ep_tp", moe_, {Axis::ep, Axis::tp});
      along("expert_tp", moe_, {Axis::tp}, all);
    }
    along("ep", moe_, {Axis::ep}, all);
    if (!plan_.overlap.overlap_moe_expert_parallel_comm || plan_.experts.pad_to_capacity) return;
    mesh::Axes axes{Axis::ep};
    if (other_tokens) axes.push_back(Axis::tp);
    along("ep_counts", moe_, axes, kAlone, GroupTraffic::scalars);
  }

  void context() {
    const int cp = along("cp", plan_.mesh, {Axis::cp});
    if (cp == kAlone || !plan_.context.uses(ContextMethod::a2a_p2p)) return;
    for (const size_t level : {0, 1}) {
      auto ranks =
          narrow_ranks(hierarchical_cp_group(plan_.mesh, rank_, plan_.context.levels, level));
      if (ranks.size() > 1)
        add(level == 0 ? "cp_a2a" : "cp_p2p", std::move(ranks), GroupTraffic::bulk, cp);
    }
  }

  void pipeline() {
    if (l_.pp == 1) return;
    const schedule::Schedule& s = plan_.schedule;
    const int pp = along("pp", plan_.mesh, {Axis::pp});
    const std::vector<int> stages = ranks_of(pp);
    const int64_t own = plan_.mesh.coordinate(rank_, Axis::pp);
    const auto pair = [&](int64_t a, int64_t b) {
      return std::vector{stages[size_t(std::min(a, b))], stages[size_t(std::max(a, b))]};
    };
    for (const auto& of_class : classes_of(pipeline_channels(s))) {
      const auto c = std::ranges::find_if(
          of_class, [&](const Channel& x) { return x.first == own || x.second == own; });
      if (c == of_class.end())
        add("", std::vector<int>{}, GroupTraffic::messages);
      else
        add(fmt::format("pp {}>{}", c->first, c->second), pair(c->first, c->second),
            GroupTraffic::messages);
    }
    if (!shares_table(plan_)) return;
    const int64_t first = s.rank_of(0), last = second_table_rank(plan_);
    const bool member = own == first || own == last;
    add("pp_table", member ? pair(first, last) : std::vector<int>{}, GroupTraffic::bulk, pp);
  }

  void data() {
    using enum Axis;
    const mesh::Mesh& mesh = plan_.mesh;
    int all = kAlone;
    if (l_.gradient_ranks() > 1 || l_.undivided_experts()) {
      all = along("dp_cp", mesh, mesh::dp_cp_axes());
      if (l_.dp_replicate > 1) {
        along("dp_shard_cp", mesh, mesh::dp_shard_cp_axes(), all);
        along("dp_replicate", mesh, {dp_replicate}, all);
      }
      const bool sharded = plan_.data_parallel.shards != ShardLevel::nothing;
      const int gather =
          sharded ? along("dp_param", mesh, mesh::dp_shard_cp_axes(), kAlone, gather_traffic(plan_))
                  : kAlone;
      expert_copies(all, gather, sharded);
    }
    if (!plan_.optimizer.muon.on) return;
    const int family = l_.tp == 1 ? all : kAlone,
              stage = along("stage", mesh, {dp_replicate, dp_shard, cp, tp}, family);
    matrix_copies(family == kAlone ? stage : family);
  }
  // The ranks that own the same elements of matrices: those of optim::MatrixExchange's places. A
  // rank of tp has a place of its own, whether or not tensors are divided over tp.
  void matrix_copies(int parent) {
    const bool sharded = plan_.data_parallel.shards != ShardLevel::nothing;
    struct Copies {
      const mesh::Mesh& mesh;
      mesh::Axes axes;
      bool here;  // whether this rank's stages have such matrices
    };
    const mesh::Axes replicas{Axis::dp_replicate};
    const std::vector<bool> experts = experts_of_layers();
    std::vector<Copies> kinds{
        {plan_.mesh, sharded ? replicas : mesh::dp_cp_axes(), !experts.empty()}};
    if (plan_.model.experts())
      kinds.push_back({moe_, sharded ? replicas : mesh::expert_copy_axes(),
                       std::ranges::find(experts, true) != experts.end()});
    // Groups of the same ranks are one group. A mesh that has the same group of rank 0 has the same
    // groups of all ranks.
    if (kinds.size() == 2 &&
        kinds[0].mesh.group(0, kinds[0].axes) == moe_.group(0, kinds[1].axes)) {
      kinds[0].here |= kinds[1].here;
      kinds.pop_back();
    }
    for (const Copies& c : kinds)
      if (c.mesh.size(c.axes) > 1)
        add("matrix_copies",
            c.here ? narrow_ranks(c.mesh.group(rank_, c.axes)) : std::vector<int>{},
            GroupTraffic::bulk, parent);
  }
  // Whether each layer of this rank's stages has experts.
  std::vector<bool> experts_of_layers() const {
    const int64_t own = plan_.mesh.coordinate(rank_, Axis::pp);
    std::vector<bool> all;
    for (int64_t stage = 0; stage < plan_.schedule.stages; ++stage) {
      if (plan_.schedule.rank_of(stage) != own) continue;
      const std::vector<bool> layers = experts_of_stage(plan_, stage);
      all.insert(all.end(), layers.begin(), layers.end());
    }
    return all;
  }
  // Undivided experts are copied over tp, which no group of the dense parameters spans.
  void expert_copies(int all, int gather, bool sharded) {
    if (l_.ep == 1 && !l_.undivided_experts()) return;
    const bool within = !l_.undivided_experts();
    along("expert_copies", moe_, mesh::expert_copy_axes(), within ? all : kAlone);
    if (l_.dp_replicate > 1) along("ep_shard", moe_, {Axis::ep_shard}, within ? all : kAlone);
    // Windows belong to one communicator; those groups do not share.
    const GroupTraffic traffic = gather_traffic(plan_);
    if (sharded)
      along("ep_param", moe_, {Axis::ep_shard},
            within && traffic != GroupTraffic::copies ? gather : kAlone, traffic);
  }

  const RunPlan& plan_;
  const Layout& l_;
  const mesh::Mesh moe_;
  const int64_t rank_;
  std::vector<Split> splits_;
};

}  // namespace

std::vector<mesh::GroupSplit> process_groups(const RunPlan& plan, int64_t rank) {
  const Groups groups(plan, rank);
  std::vector<GroupSplit> all;
  for (const Split& s : groups.splits())
    all.push_back({s.name, s.traffic, s.members.list(rank), s.parent});
  return all;
}

std::vector<CountedSplit> count_process_groups(const RunPlan& plan, int64_t rank,
                                               int64_t ranks_per_host) {
  const Groups groups(plan, rank);
  const int64_t host = rank / ranks_per_host * ranks_per_host;
  std::vector<CountedSplit> all;
  for (const Split& s : groups.splits())
    all.push_back({s.traffic, s.members.count(),
                   s.members.count_in(rank, host, host + ranks_per_host), s.parent});
  return all;
}

GroupTraffic gather_traffic(const RunPlan& plan) {
  const DataParallelOptions& o = plan.data_parallel;
  return o.gather.symmetric || o.gather_updated.symmetric ? GroupTraffic::copies
                                                          : GroupTraffic::bulk;
}

std::set<std::pair<int64_t, int64_t>> pipeline_channels(const schedule::Schedule& s) {
  std::set<Channel> pairs;
  for (int64_t stage = 0; stage + 1 < s.stages; ++stage) {
    const int64_t a = s.rank_of(stage), b = s.rank_of(stage + 1);
    if (a == b) continue;
    pairs.insert({a, b});  // activations
    pairs.insert({b, a});  // their gradients
  }
  return pairs;
}

bool shares_table(const RunPlan& plan) {
  return plan.model.table_at_end() && plan.schedule.rank_of(0) != second_table_rank(plan);
}

int64_t second_table_rank(const RunPlan& plan) {
  return plan.schedule.rank_of(plan.layout.prediction_stage());
}

}  // namespace mtrain::plan
