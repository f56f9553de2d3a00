// Tests the list of a job's groups, and the memory that NCCL is expected to keep for them.
#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include <fmt/ranges.h>

#include "plan/nccl_memory.h"
#include "plan/process_groups.h"
#include "plan/run_plan.h"
#include "recipe_cases.h"

namespace plan_process_groups_test {

using namespace mtrain;
using namespace mtrain::plan;
using namespace recipe_cases;
using mesh::GroupSplit;

namespace {

RunPlan plan_of(int64_t world, const Overrides& set) {
  Diagnostics diagnostics;
  const Recipe r =
      load_recipe_text(interchange::model_source(), kBase, "base.yaml", set, diagnostics, world);
  INFO(listed(diagnostics));
  REQUIRE(count(diagnostics, Severity::error) == 0);
  return make_plan(r, world, 512);
}

struct Layout {
  int64_t world;
  Overrides set;
};
const std::vector<Layout> kLayouts{
    {2, {}},
    {8, {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"}},
    {8, {"distributed.tp_size=8", "distributed.sequence_parallel=true"}},
    {8,
     {"distributed.cp_size=4", "distributed.cp_comm_type=a2a+p2p",
      "distributed.hierarchical_context_parallel_sizes=[2,2]"}},
    {16,
     {"distributed.pp_size=4", "distributed.vpp_size=2", "distributed.tp_size=2",
      "distributed.strategy=megatron_ddp", "model.share_embeddings_and_output_weights=true"}},
    {6,
     {"distributed.pp_size=3", "model.num_layers=9", "train.global_batch_size=12",
      "model.share_embeddings_and_output_weights=true", "distributed.strategy=megatron_ddp"}},
    {8,
     {"model.moe.num_experts=8", "distributed.ep_size=2", "distributed.tp_size=2",
      "distributed.sequence_parallel=true", "distributed.strategy=megatron_ddp"}},
    {8,
     {"model.moe.num_experts=8", "distributed.ep_size=4", "distributed.tp_size=2",
      "distributed.expert_tp_size=1", "distributed.sequence_parallel=true",
      "distributed.strategy=megatron_ddp"}},
    {4, {"optimizer.name=muon", "distributed.tp_size=2"}},
    {8,
     {"optimizer.name=muon", "model.moe.num_experts=8", "distributed.ep_size=2",
      "distributed.pp_size=2", "model.num_layers=4", "model.moe.layer_freq=[0,0,1,1]",
      "distributed.strategy=megatron_ddp", "ddp.use_distributed_optimizer=false"}},
    {8,
     {"optimizer.name=muon", "model.moe.num_experts=8", "distributed.ep_size=2",
      "distributed.dp_replicate_size=2", "distributed.strategy=fsdp2"}}};

std::vector<std::string> names_of(const std::vector<GroupSplit>& splits) {
  std::vector<std::string> names;
  for (const GroupSplit& s : splits)
    names.push_back(s.parent < 0 ? s.name : s.name + " in " + splits[size_t(s.parent)].name);
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("all ranks have the same list of splits, and agree about its groups") {
  for (const Layout& l : kLayouts) {
    CAPTURE(l.world, l.set);
    const RunPlan plan = plan_of(l.world, l.set);
    std::vector<std::vector<GroupSplit>> of;
    for (int64_t r = 0; r < l.world; ++r) of.push_back(process_groups(plan, r));
    const std::vector<GroupSplit>& first = of[0];
    REQUIRE(first.size() > 1);
    CHECK(int64_t(first[0].ranks.size()) == l.world);
    for (size_t r = 0; r < of.size(); ++r) {
      REQUIRE(of[r].size() == first.size());
      for (size_t i = 0; i < first.size(); ++i) {
        const GroupSplit& s = of[r][i];
        CAPTURE(r, i, s.name);
        CHECK(s.traffic == first[i].traffic);
        CHECK(s.parent == first[i].parent);
        CHECK(s.parent < int(i));
        if (s.ranks.empty()) continue;
        CHECK(s.ranks.size() > 1);
        CHECK(std::ranges::is_sorted(s.ranks));
        CHECK(std::ranges::count(s.ranks, int(r)) == 1);
        for (const int peer : s.ranks) {
          CHECK(of[size_t(peer)][i].ranks == s.ranks);
          CHECK(of[size_t(peer)][i].name == s.name);
        }
        if (s.parent >= 0) CHECK(std::ranges::includes(of[r][size_t(s.parent)].ranks, s.ranks));
      }
    }
  }
}

TEST_CASE("groups of one stream share what contains them, and those of other streams do not") {
  const auto names = [](int64_t world, const Overrides& set) {
    return names_of(process_groups(plan_of(world, set), 0));
  };
  CHECK(process_groups(plan_of(1, {}), 0).empty());
  CHECK(names(2, {"distributed.strategy=ddp"}) == Names{"world", "dp_cp"});
  CHECK(names(2, {"distributed.strategy=megatron_ddp"}) == Names{"world", "dp_cp", "dp_param"});
  CHECK(names(8, {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"}) ==
        Names{"world", "dp_cp", "dp_shard_cp in dp_cp", "dp_replicate in dp_cp", "dp_param"});
  CHECK(names(8, {"distributed.tp_size=8"}) == Names{"world", "tp", "tp_kv in tp"});
}

TEST_CASE("Muon's groups of equal matrices are planned, within groups of the same stream") {
  const auto names = [](int64_t world, int64_t rank, Overrides set) {
    set.push_back("optimizer.name=muon");
    return names_of(process_groups(plan_of(world, set), rank));
  };
  CHECK(names(4, 0,
              {"distributed.strategy=megatron_ddp", "ddp.use_distributed_optimizer=false",
               "distributed.tp_size=2"}) ==
        Names{"world", "tp", "dp_cp", "stage", "matrix_copies in stage"});
  CHECK(names(4, 0, {"distributed.strategy=ddp"}) ==
        Names{"world", "dp_cp", "stage in dp_cp", "matrix_copies in dp_cp"});
  // A sharded strategy has copies in other replicas alone.
  CHECK(names(4, 0, {"distributed.strategy=fsdp2"}) ==
        Names{"world", "dp_cp", "dp_param", "stage in dp_cp"});
  CHECK(names(4, 0, {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"}) ==
        Names{"world", "dp_cp", "dp_shard_cp in dp_cp", "dp_replicate in dp_cp", "dp_param",
              "stage in dp_cp", "matrix_copies in dp_cp"});
  // The ranks of a stage without experts are in none of the experts' groups.
  const Overrides experts{"distributed.strategy=megatron_ddp",
                          "ddp.use_distributed_optimizer=false",
                          "model.moe.num_experts=8",
                          "distributed.ep_size=2",
                          "distributed.pp_size=2",
                          "model.num_layers=4",
                          "model.moe.layer_freq=[0,0,1,1]",
                          "model.moe.ffn_hidden_size=64"};
  const auto copies = [&](int64_t rank) {
    Overrides set = experts;
    set.push_back("optimizer.name=muon");
    std::vector<std::vector<int>> ranks;
    for (const GroupSplit& s : process_groups(plan_of(8, set), rank))
      if (s.name == "matrix_copies") ranks.push_back(s.ranks);
    return ranks;
  };
  CHECK(copies(0) == std::vector<std::vector<int>>{{0, 1, 2, 3}, {}});
  CHECK(copies(5) == std::vector<std::vector<int>>{{4, 5, 6, 7}, {5, 7}});
}

TEST_CASE("channels of a pipeline take few splits, however many stages it has") {
  for (const auto& [pp, most] : {std::pair<int64_t, size_t>{2, 2}, {4, 6}, {8, 6}}) {
    CAPTURE(pp);
    const RunPlan plan =
        plan_of(pp, {fmt::format("distributed.pp_size={}", pp), "distributed.strategy=megatron_ddp",
                     "model.num_layers=16", "distributed.vpp_size=2"});
    std::set<std::pair<int64_t, int64_t>> seen;
    size_t splits = 0;
    for (int64_t r = 0; r < pp; ++r) {
      splits = 0;
      for (const GroupSplit& s : process_groups(plan, r)) {
        splits += s.traffic == GroupTraffic::messages;
        int64_t from = 0, to = 0;
        if (std::sscanf(s.name.c_str(), "pp %ld>%ld", &from, &to) == 2) {
          CHECK((from == r || to == r));
          seen.insert({from, to});
        }
      }
    }
    CHECK(seen == pipeline_channels(plan.schedule));
    CHECK(splits <= most);
  }
}

TEST_CASE("groups are counted as they are listed") {
  for (const Layout& l : kLayouts) {
    const RunPlan plan = plan_of(l.world, l.set);
    for (int64_t rank = 0; rank < l.world; ++rank)
      for (const int64_t host : {1, 3, 8}) {
        const std::vector<GroupSplit> listed = process_groups(plan, rank);
        const std::vector<mesh::CountedSplit> counted = count_process_groups(plan, rank, host);
        REQUIRE(counted.size() == listed.size());
        for (size_t i = 0; i < listed.size(); ++i) {
          CAPTURE(rank, host, listed[i].name);
          CHECK(counted[i].traffic == listed[i].traffic);
          CHECK(counted[i].parent == listed[i].parent);
          CHECK(counted[i].ranks == int64_t(listed[i].ranks.size()));
          CHECK(counted[i].on_host == std::ranges::count_if(listed[i].ranks, [&](int r) {
                  return r / host == rank / host;
                }));
        }
      }
  }
}

TEST_CASE("NCCL's memory counts each communicator's channels, and shared ones once") {
  const NcclMachine host{.ranks_per_host = 8, .switch_sums = true},
      plain{.ranks_per_host = 8, .switch_sums = false}, small{.ranks_per_host = 2};
  const double connection = (4 << 20) + (512 << 10) + 640 * 120 * 64;
  const auto bytes = [&](GroupTraffic traffic, const NcclMachine& machine, int parent = -1) {
    return nccl_bytes({traffic, 8, std::min<int64_t>(8, machine.ranks_per_host), parent}, machine);
  };
  CHECK(bytes(GroupTraffic::scalars, host) == 2 * connection);
  CHECK(bytes(GroupTraffic::messages, host) == 4 * connection);
  CHECK(bytes(GroupTraffic::bulk, plain) == 16 * 2 * connection);
  // Eight ranks of a host: two buffers of a MiB for each of 16 channels.
  CHECK(bytes(GroupTraffic::bulk, host) == 32 * connection + 2 * 16 * 8 * double(1 << 20));
  CHECK(bytes(GroupTraffic::bulk, small) == 32 * connection);
  CHECK(bytes(GroupTraffic::bulk, host, 1) == 0);
  CHECK(nccl_bytes({GroupTraffic::messages}, host) == 0);
}

TEST_CASE("the plan of GPUs has NCCL's memory, and that of CPUs has none") {
  const auto nccl = [](int64_t world, const char* device, const Overrides& more) {
    Overrides set{fmt::format("train.device={}", device)};
    set.insert(set.end(), more.begin(), more.end());
    const RunPlan plan = plan_of(world, set);
    const MemoryEstimate m = plan.fullest();
    CHECK(m.total() >= m.nccl);
    return m.nccl;
  };
  CHECK(nccl(8, "cpu", {}) == 0);
  CHECK(nccl(1, "cuda", {}) == 0);
  const double ddp = nccl(8, "cuda", {"distributed.strategy=ddp"}),
               fsdp = nccl(8, "cuda", {"distributed.strategy=fsdp2"});
  CHECK(ddp > 500e6);
  CHECK(ddp < 700e6);
  CHECK(fsdp > 1.9 * ddp);  // parameters and gradients travel at the same time
  // What the replicas of a shard use is part of the group of all.
  CHECK(nccl(8, "cuda", {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"}) < fsdp);
}

}  // namespace plan_process_groups_test
