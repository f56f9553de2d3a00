// Compares the planned list of groups with the groups that a training makes.
#include <algorithm>
#include <mutex>
#include <set>

#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include "comm/thread/thread_transport.h"
#include "plan/process_groups.h"
#include "plan/run_plan.h"
#include "plan_testing.h"
#include "train/build_trainer.h"

namespace parity_process_groups_test {

using namespace mtrain;
using namespace plan_testing;

namespace {

struct Case {
  int ranks;
  Overrides set;
};
const std::vector<Case> kCases{
    {2, {"distributed.strategy=ddp"}},
    {4, {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"}},
    {4, {"distributed.strategy=megatron_ddp", "optimizer.name=muon", "distributed.tp_size=2"}},
    {4,
     {"distributed.tp_size=4", "distributed.sequence_parallel=true",
      "distributed.strategy=megatron_ddp"}},
    {4,
     {"distributed.cp_size=4", "distributed.cp_comm_type=a2a+p2p", "model.num_query_groups=4",
      "distributed.hierarchical_context_parallel_sizes=[2,2]"}},
    {8,
     {"distributed.pp_size=4", "distributed.vpp_size=2", "model.num_layers=16",
      "model.share_embeddings_and_output_weights=true", "distributed.strategy=megatron_ddp"}},
    {3, {"distributed.pp_size=3", "distributed.strategy=megatron_ddp"}},
    {8,
     {"model.moe.num_experts=8", "distributed.ep_size=2", "distributed.tp_size=2",
      "distributed.cp_size=2", "distributed.sequence_parallel=true",
      "distributed.strategy=megatron_ddp"}},
    {8,
     {"model.moe.num_experts=8", "distributed.ep_size=4", "distributed.tp_size=2",
      "distributed.expert_tp_size=1", "distributed.sequence_parallel=true",
      "distributed.strategy=fsdp2"}},
    {4,
     {"model.moe.num_experts=8", "distributed.ep_size=2", "distributed.strategy=fsdp2",
      "distributed.dp_replicate_size=2"}},
    {4,
     {"model.moe.num_experts=8", "distributed.ep_size=2", "distributed.pp_size=2",
      "distributed.vpp_size=2", "model.num_layers=8", "distributed.strategy=megatron_ddp",
      "comm_overlap.overlap_moe_expert_parallel_comm=true"}},
    // Muon: copies over all replicas, over those of a sharded strategy, and of experts alone.
    {4,
     {"distributed.strategy=megatron_ddp", "ddp.use_distributed_optimizer=false",
      "optimizer.name=muon", "distributed.cp_size=2"}},
    {4, {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2", "optimizer.name=muon"}},
    {8,
     {"model.moe.num_experts=8", "distributed.ep_size=2", "distributed.tp_size=2",
      "distributed.sequence_parallel=true", "distributed.strategy=megatron_ddp",
      "ddp.use_distributed_optimizer=false", "optimizer.name=muon"}},
    {8,
     {"model.moe.num_experts=8", "distributed.ep_size=4", "distributed.tp_size=2",
      "distributed.expert_tp_size=1", "distributed.sequence_parallel=true",
      "distributed.strategy=megatron_ddp", "ddp.use_distributed_optimizer=false",
      "optimizer.name=muon"}},
    {8,
     {"model.moe.num_experts=8", "distributed.ep_size=2", "distributed.strategy=fsdp2",
      "distributed.dp_replicate_size=2", "optimizer.name=muon"}},
    {8,
     {"model.moe.num_experts=8", "distributed.ep_size=2", "distributed.pp_size=2",
      "model.num_layers=4", "model.moe.layer_freq=[0,0,1,1]", "distributed.strategy=megatron_ddp",
      "ddp.use_distributed_optimizer=false", "optimizer.name=muon"}}};

}  // namespace

TEST_CASE("a training makes exactly the groups of the planned list") {
  for (const Case& c : kCases) {
    CAPTURE(c.ranks, c.set);
    Overrides set{"train.global_batch_size=48", "train.micro_batch_size=1"};
    set.insert(set.end(), c.set.begin(), c.set.end());
    const Recipe r = recipe_with(set, c.ranks);
    const RunPlan plan = plan::make_plan(r, c.ranks, kVocab);
    std::mutex mutex;
    std::vector<std::set<std::string>> made(static_cast<size_t>(c.ranks));
    comm::run_thread_ranks(c.ranks, [&](comm::World& world) {
      const auto device = Device::cpu(1, {});
      const train::Trainer trainer =
          train::build_trainer(*device, plan::make_plan(r, world.size(), kVocab),
                               std::make_shared<RepeatedToken>(r.dataset.seq_length), world);
      const std::lock_guard lock(mutex);
      for (const std::string& name : world.group_names()) made[size_t(world.rank())].insert(name);
    });
    for (int rank = 0; rank < c.ranks; ++rank) {
      CAPTURE(rank);
      std::set<std::string> planned;
      for (const mesh::GroupSplit& s : plan::process_groups(plan, rank))
        if (!s.ranks.empty()) planned.insert(fmt::format("{}:{}", s.name, fmt::join(s.ranks, ",")));
      CHECK(planned == made[size_t(rank)]);
    }
  }
}

}  // namespace parity_process_groups_test
