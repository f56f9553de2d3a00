// Compares models with experts under layouts, schedules and recomputation with a single rank. Runs
// under the stream sanitizer.
#include <filesystem>

#include <catch2/catch.hpp>

#include "../unit/temporary_folder.h"
#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "train_ranks.h"

using namespace mtrain;
using namespace train_testing;
namespace fs = std::filesystem;

namespace {

// A dense layer, then layers of 16 experts: a micro-batch of 24 tokens leaves some without a row.
const Changes kExperts{"model.num_layers=4",
                       "model.moe.num_experts=16",
                       "model.moe.router_topk=2",
                       "model.moe.ffn_hidden_size=40",
                       "model.moe.first_dense_layers=1",
                       "model.moe.load_balancing_type=aux_loss",
                       "model.moe.aux_loss_coeff=0.05",
                       "model.moe.z_loss_coeff=0.001",
                       "train.global_batch_size=8",
                       "train.micro_batch_size=1"};
// Experts of every layer whose weights do not sum to 1, and a shared expert under a gate.
const Changes kShared{"model.num_layers=4",
                      "model.moe.num_experts=6",
                      "model.moe.router_topk=3",
                      "model.moe.ffn_hidden_size=40",
                      "model.moe.router_pre_softmax=true",
                      "model.moe.norm_topk_prob=false",
                      "model.moe.shared_expert_ffn_hidden_size=56",
                      "model.moe.shared_expert_gate=true",
                      "model.moe.load_balancing_type=seq_aux_loss",
                      "model.moe.aux_loss_coeff=0.05",
                      "train.global_batch_size=8",
                      "train.micro_batch_size=1"};

const Changes kMegatron{"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"},
    kFsdp2{"distributed.strategy=fsdp2"};

Changes pipelined(const char* schedule, int stages) {
  return {"distributed.pp_size=2", fmt::format("distributed.vpp_size={}", stages),
          fmt::format("distributed.pipeline.pp_schedule={}", schedule)};
}

// The numerics contract: losses to 1e-5 relative in fp32, the first step's gradients, too.
void expect_as_alone(const Result& one, const std::vector<Result>& ranks, bool whole_model) {
  for (const Result& r : ranks) {
    check_close(one.losses, r.losses, 1e-5);
    check_close(one.norms, r.norms, 1e-4);
    CHECK(r.evaluation == Approx(one.evaluation).epsilon(1e-5));
    if (whole_model) check_gradients(one, r, 1e-5);
  }
}

}  // namespace

TEST_CASE("models with experts train as a single rank does under every strategy") {
  const std::vector<Changes> strategies{
      {"distributed.strategy=ddp", "ddp.bucket_size=9000"},
      kMegatron,
      {"distributed.strategy=megatron_ddp", "ddp.use_distributed_optimizer=false"},
      with(kMegatron, {"ddp.average_in_collective=true"}),
      {"distributed.strategy=megatron_fsdp", "ddp.bucket_size=3000"},
      kFsdp2,
      {"distributed.strategy=fsdp2", "distributed.defer_fsdp_grad_sync=false",
       "distributed.reshard_after_forward=false"},
      with(kFsdp2, {"recompute.granularity=full", "recompute.num_layers=2"})};
  for (const Changes& model : {kExperts, kShared}) {
    const Result one = train_alone(model, 10);
    CHECK(one.losses.back() < 0.97 * one.losses.front());
    for (const Changes& strategy : strategies) {
      CAPTURE(model, strategy);
      expect_as_alone(one, train_ranks(2, with(model, strategy), 10), true);
    }
    expect_as_alone(
        one, train_ranks(4, with(model, with(kFsdp2, {"distributed.dp_replicate_size=2"})), 10),
        true);
  }
}

TEST_CASE("models with experts train as a single rank does under every kind of schedule") {
  struct Case {
    const char* schedule;
    int stages;
    int dp;
    Changes strategy;
  };
  const std::vector<Case> cases{
      {"1f1b", 1, 1, kMegatron},
      {"1f1b", 1, 2, kFsdp2},
      {"interleaved_1f1b", 2, 1, kMegatron},
      {"interleaved_1f1b", 2, 2, with(kMegatron, {"comm_overlap.fine_grained_1f1b=true"})},
      {"zero_bubble", 1, 1, kFsdp2},
      {"zero_bubble", 2, 1, kMegatron},
      {"v_schedule", 2, 1, kMegatron},
      {"dualpipev", 2, 1, kMegatron}};
  for (const Changes& model : {kExperts, kShared}) {
    const Result one = train_alone(model, 6);
    for (const Case& c : cases) {
      CAPTURE(model, c.schedule, c.stages, c.dp, c.strategy);
      const auto ranks =
          train_ranks(2 * c.dp, with(model, with(pipelined(c.schedule, c.stages), c.strategy)), 6);
      expect_as_alone(one, ranks, false);
    }
  }
}

TEST_CASE("recomputation chooses the same experts, and changes no bit") {
  for (const Changes& model : {kExperts, kShared})
    for (const char* precision : {"fp32", "bf16_mixed"}) {
      const Changes base = with(model, {fmt::format("mixed_precision.name={}", precision)});
      const Result kept = train_alone(base, 4);
      const std::vector<Changes> policies{
          {"recompute.granularity=full"},
          {"recompute.granularity=full", "recompute.num_layers=2"},
          {"recompute.granularity=selective"},
          {"recompute.granularity=selective", "recompute.modules=[core_attn,layernorm]"}};
      for (const Changes& policy : policies) {
        CAPTURE(base, policy);
        const Result again = train_alone(with(base, policy), 4);
        CHECK(again.losses == kept.losses);
        CHECK((again.weights == kept.weights));
      }
    }
}

TEST_CASE("losses of tokens and samples do not depend on how these are cut into micro-batches") {
  const Changes model =
      with(kExperts, {"model.moe.load_balancing_type=seq_aux_loss", "model.moe.z_loss_coeff=0.1"});
  const Result one = train_alone(with(model, {"train.micro_batch_size=8"}), 5);
  for (const char* size : {"1", "2", "4"}) {
    CAPTURE(size);
    const Result cut =
        train_alone(with(model, {fmt::format("train.micro_batch_size={}", size)}), 5);
    check_close(one.losses, cut.losses, 1e-5);
    check_gradients(one, cut, 1e-5);
  }
}

TEST_CASE("gradients that are scaled by micro-batches have the routers' losses scaled, too") {
  const Result one = train_alone(kExperts, 1);
  const Changes layout = with(with(kExperts, with(pipelined("1f1b", 1), kMegatron)),
                              {"distributed.pipeline.scale_grads_in_schedule=true"});
  for (const Result& r : train_ranks(2, layout, 1))
    CHECK(8 * r.norms[0] == Approx(one.norms[0]).epsilon(1e-4));
}

TEST_CASE(
    "a checkpoint of experts goes on under any strategy and pipeline, bit by bit under its own") {
  const Changes base = with(kExperts, {"model.moe.shared_expert_ffn_hidden_size=32"});
  const TemporaryFolder root;
  const auto run = [&](int ranks, const Changes& changes, int steps, const fs::path* from,
                       const fs::path& to) {
    const Recipe r = tiny(with(base, changes), ranks);
    std::vector<double> losses;
    run_ranks(ranks, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      if (from) run::resume_run(t, *from);
      std::vector<double> own;
      for (int i = 0; i < steps; ++i) own.push_back(t.step().loss);
      if (!to.empty()) run::save_run(t, to);
      if (rank.rank() == 0) losses = own;
    });
    return losses;
  };
  struct Layout {
    int ranks;
    Changes changes;
  };
  const std::vector<Layout> layouts{
      {1, {}}, {2, kFsdp2}, {2, kMegatron}, {2, with(pipelined("1f1b", 1), kMegatron)}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Layout &own = layouts[i], &other = layouts[(i + 1) % layouts.size()];
    CAPTURE(own.changes, other.changes);
    const fs::path folder = root.path / std::to_string(i);
    run(own.ranks, own.changes, 3, nullptr, folder);
    const auto saved = storage::find_latest(folder);
    REQUIRE(saved);
    const auto straight = run(own.ranks, own.changes, 6, nullptr, {});
    const std::vector<double> tail(straight.begin() + 3, straight.end());
    CHECK((run(own.ranks, own.changes, 3, &saved->path, {}) == tail));
    check_close(tail, run(other.ranks, other.changes, 3, &saved->path, {}), 1e-5);
  }
}

TEST_CASE("the log has the routers' losses and loads, alike on all ranks and under all layouts") {
  const auto stats = [](int ranks, const Changes& changes) {
    const Recipe r = tiny(changes, ranks);
    std::vector<train::ExpertStats> all(static_cast<size_t>(ranks));
    run_ranks(ranks, "thread", [&](TestRank& rank) {
      train::Trainer trainer =
          make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      all[size_t(rank.rank())] = trainer.step().experts.value();
    });
    return all;
  };
  const train::ExpertStats one = stats(1, kExperts)[0];
  CHECK(one.balance_loss > 3 * 0.05);  // three layers; 1 would be an even load
  CHECK(one.z_loss > 0);
  CHECK(one.load_max > 1);
  CHECK(one.load_variation > 0);
  for (const Changes& layout : {kFsdp2, with(pipelined("1f1b", 1), kMegatron),
                                with(kFsdp2, {"recompute.granularity=full"})})
    for (const train::ExpertStats& other : stats(2, with(kExperts, layout))) {
      CAPTURE(layout);
      CHECK(other.balance_loss == Approx(one.balance_loss).epsilon(1e-6));
      CHECK(other.z_loss == Approx(one.z_loss).epsilon(1e-6));
      CHECK(other.load_max == Approx(one.load_max));
      CHECK(other.load_variation == Approx(one.load_variation));
      CHECK(other.dead == one.dead);
    }
  const Recipe dense = tiny();
  const auto device = Device::cpu(1);
  CHECK_FALSE(make_trainer(*device, dense, std::make_shared<CountingData>()).step().experts);
}
