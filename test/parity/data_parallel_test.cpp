// Compares data parallelism with a single rank: losses, gradients and weights. Runs under the
// stream sanitizer.
#include <filesystem>

#include <catch2/catch.hpp>

#include "comm/thread/thread_transport.h"
#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/temporary_folder.h"
#include "train_ranks.h"

namespace parity_data_parallel_test {

using namespace mtrain;
using namespace train_testing;
namespace fs = std::filesystem;

namespace {

// Every strategy, each with settings that choose different paths through its code.
struct StrategyCase {
  const char* name;
  Changes changes;
  int min_ranks = 2;
};
const std::vector<StrategyCase> kStrategies{
    {"ddp", {"distributed.strategy=ddp", "ddp.bucket_size=9000"}},
    {"megatron_ddp", {"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"}},
    {"megatron_ddp, whole optimizer",
     {"distributed.strategy=megatron_ddp", "ddp.use_distributed_optimizer=false"}},
    {"megatron_fsdp 0", {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=0"}},
    {"megatron_fsdp 1", {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=1"}},
    {"megatron_fsdp 2",
     {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2",
      "ddp.bucket_size=3000"}},
    {"megatron_fsdp 3",
     {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=3",
      "ddp.bucket_size=3000"}},
    {"fsdp2", {"distributed.strategy=fsdp2"}},
    {"fsdp2, reduced at once, kept after forward",
     {"distributed.strategy=fsdp2", "distributed.defer_fsdp_grad_sync=false",
      "distributed.reshard_after_forward=false"}},
    {"fsdp2 in two replicas", {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"}, 4},
};

}  // namespace

TEST_CASE("every strategy trains as a single rank does, under any number of ranks") {
  const Changes batch{"train.global_batch_size=24", "train.micro_batch_size=1"};
  const std::vector<Changes> models{
      {"model.num_layers=3"},
      {"model.share_embeddings_and_output_weights=true"},
      {"model.architecture=gpt2", "model.num_query_groups=4", "model.hidden_dropout=0.1"}};
  for (const auto& model : models) {
    const Result one = train_alone(with(batch, model), compared_steps(20));
    for (const StrategyCase& strategy : kStrategies)
      for (const int ranks : {2, 4, 8}) {
        if (ranks < strategy.min_ranks) continue;
        CAPTURE(strategy.name, ranks);
        const auto results =
            train_ranks(ranks, with(with(batch, model), strategy.changes), compared_steps(20));
        // The numerics contract: losses to 1e-5 relative in fp32.
        check_close(one.losses, results[0].losses, 1e-5);
        check_close(one.norms, results[0].norms, 1e-4);
        CHECK(results[0].evaluation == Approx(one.evaluation).epsilon(1e-5));
        for (const auto& other : results) {
          CHECK((other.losses == results[0].losses));
          CHECK((other.weights == results[0].weights));
          CHECK(other.evaluation == results[0].evaluation);
        }
      }
  }
}

TEST_CASE("every strategy accumulates, in fp32 and bf16, with recomputation") {
  const Changes base{"model.num_layers=5", "train.global_batch_size=12",
                     "train.micro_batch_size=2"};
  for (const char* precision : {"fp32", "bf16_mixed"})
    for (const StrategyCase& strategy : kStrategies)
      for (const Changes& recompute : {Changes{},
                                       {"recompute.granularity=full"},
                                       {"recompute.granularity=full", "recompute.num_layers=3"}})
        for (const int ranks : {2, 4}) {  // 3 micro-batches a rank, or a half-filled one
          if (ranks < strategy.min_ranks) continue;
          if (ranks == 4 && !recompute.empty()) continue;
          const Changes changes =
              with(with(base, recompute),
                   {fmt::format("mixed_precision.name={}", precision),
                    fmt::format("train.micro_batch_size={}", ranks == 2 ? 2 : 1)});
          CAPTURE(precision, strategy.name, recompute, ranks);
          const bool fp32 = precision == std::string("fp32");
          check_close(train_alone(changes, 6).losses,
                      train_ranks(ranks, with(changes, strategy.changes), 6)[0].losses,
                      fp32 ? 1e-5 : 2e-2);
        }
}

TEST_CASE("overlap, buckets and prefetch change when data travels, never a bit of it") {
  const Changes batch{"train.global_batch_size=12", "train.micro_batch_size=2",
                      "model.num_layers=4"};
  struct Family {
    Changes base;
    std::vector<Changes> variants;  // all give the same bits
  };
  const Changes late{"ddp.overlap_grad_reduce=false"}, early{"ddp.overlap_grad_reduce=true"};
  const Changes gather{"ddp.overlap_param_gather=true"},
      no_gather{"ddp.overlap_param_gather=false"};
  const auto buckets = [&](const Changes& base) {
    return Family{
        base,
        {late, early, with(early, {"ddp.bucket_size=1"}), with(early, {"ddp.bucket_size=9000"})}};
  };
  const auto megatron_fsdp = [&](int zero) {
    return Changes{"distributed.strategy=megatron_fsdp",
                   fmt::format("distributed.zero_dp_strategy={}", zero)};
  };
  const auto both = [&](const Changes& base) {
    return Family{base, {with(late, no_gather), with(early, no_gather), with(early, gather)}};
  };
  const std::vector<Family> families{
      buckets({"distributed.strategy=ddp"}),
      buckets({"distributed.strategy=megatron_ddp", "ddp.overlap_param_gather=false"}),
      both({"distributed.strategy=megatron_ddp", "ddp.bucket_size=9000"}),
      both(megatron_fsdp(1)),
      both(megatron_fsdp(2)),
      both(megatron_fsdp(3)),
      {{"distributed.strategy=fsdp2"},
       {{},
        {"distributed.fsdp2_forward_prefetch_depth=0",
         "distributed.fsdp2_backward_prefetch_depth=0"},
        {"distributed.fsdp2_forward_prefetch_depth=3",
         "distributed.fsdp2_backward_prefetch_depth=1"},
        {"distributed.reshard_after_forward=false"}}}};
  for (const char* precision : {"mixed_precision.name=fp32", "mixed_precision.name=bf16_mixed"})
    for (const Family& family : families) {
      const Changes base = with(with(batch, {precision}), family.base);
      const Result first = train_ranks(2, with(base, family.variants[0]), 5)[0];
      for (size_t i = 1; i < family.variants.size(); ++i) {
        const Result other = train_ranks(2, with(base, family.variants[i]), 5)[0];
        CAPTURE(precision, family.base, family.variants[i]);
        CHECK((other.losses == first.losses));
        CHECK((other.weights == first.weights));
      }
    }
}

TEST_CASE("every backend of communication trains alike") {
  const Changes base{"train.global_batch_size=12", "train.micro_batch_size=1",
                     "model.num_layers=3"};
  const Result one = train_alone(base, 5);
  for (const StrategyCase& strategy : kStrategies)
    for (const int ranks : {2, 4}) {
      if (ranks < strategy.min_ranks) continue;
      CAPTURE(strategy.name, ranks);
      const Changes changes = with(base, strategy.changes);
      const Result thread = train_ranks(ranks, changes, 5)[0];
      const Result shared = train_ranks(ranks, changes, 5, "shared_memory")[0];
      CHECK((shared.losses == thread.losses));
      CHECK((shared.weights == thread.weights));
      // Rings sum in their own order, which is the same in every run.
      const auto gloo = train_ranks(ranks, changes, 5, "gloo");
      check_close(one.losses, gloo[0].losses, 1e-5);
      for (const Result& rank : gloo) CHECK((rank.weights == gloo[0].weights));
      if (strategy.changes[0] == "distributed.strategy=fsdp2") continue;  // always overlaps
      const Changes late = with(changes, {"ddp.overlap_grad_reduce=false"});
      CHECK((train_ranks(ranks, late, 5, "gloo")[0].weights == gloo[0].weights));
    }
}

TEST_CASE("averaging in the collective, and gradients that travel in bf16") {
  const Changes base{"train.global_batch_size=12", "train.micro_batch_size=2"};
  const Result one = train_alone(base, compared_steps(20));
  for (const char* strategy : {"ddp", "megatron_ddp", "megatron_fsdp"}) {
    CAPTURE(strategy);
    const Changes on = with(base, {fmt::format("distributed.strategy={}", strategy)});
    check_close(
        one.losses,
        train_ranks(3, with(on, {"ddp.average_in_collective=true"}), compared_steps(20))[0].losses,
        1e-5);
    // Partial gradients have eight bits: the losses are near those of fp32, but not within its
    // contract.
    const auto rounded = train_ranks(2, with(on, {"mixed_precision.grad_reduce_in_fp32=false"}),
                                     compared_steps(20))[0]
                             .losses;
    check_close(one.losses, rounded, 2e-2);
    CHECK(rounded != one.losses);
  }
}

TEST_CASE("tokens that do not count are averaged over all ranks' tokens, not rank by rank") {
  // Masked labels fall unevenly: a mean of the ranks' means would differ in the third digit.
  const Changes changes{"train.global_batch_size=6", "train.micro_batch_size=1"};
  for (const StrategyCase& s : kStrategies)
    if (s.min_ranks <= 3)
      check_close(train_alone(changes, 3).losses,
                  train_ranks(3, with(changes, s.changes), 3)[0].losses, 1e-6);
}

TEST_CASE("a checkpoint of any strategy and number of ranks resumes under any other") {
  const Changes base{"train.global_batch_size=12", "train.micro_batch_size=1",
                     "model.num_layers=3"};
  const Result straight = train_alone(base, 6);
  const TemporaryFolder root;
  const auto run = [&](int ranks, const Changes& changes, const fs::path* from,
                       const fs::path& to) {
    const Recipe r = tiny(changes, ranks);
    std::vector<double> losses;
    comm::run_thread_ranks(ranks, [&](comm::World& world) {
      const auto device = Device::cpu(1, {.stream_sanitizer = true});
      train::Trainer t = make_trainer(*device, r, std::make_shared<CountingData>(), world);
      if (from) run::resume_run(t, *from);
      std::vector<double> own;
      for (int i = 0; i < 3; ++i) own.push_back(t.step().loss);
      if (!to.empty()) run::save_run(t, to);
      if (world.rank() == 0) losses = own;
    });
    return losses;
  };
  const std::vector<double> tail(straight.losses.begin() + 3, straight.losses.end());
  for (size_t i = 0; i < kStrategies.size(); ++i) {
    const StrategyCase &first = kStrategies[i], &second = kStrategies[(i + 3) % kStrategies.size()];
    CAPTURE(first.name, second.name);
    const fs::path folder = root.path / std::to_string(i);
    run(std::max(2, first.min_ranks), with(base, first.changes), nullptr, folder);
    const auto saved = storage::find_latest(folder);
    REQUIRE(saved);
    check_close(tail, run(4, with(base, second.changes), &saved->path, {}), 1e-5);
    // Under the same layout, losses are equal bit by bit.
    const int ranks = std::max(2, first.min_ranks);
    const auto again = run(ranks, with(base, first.changes), &saved->path, {});
    const auto whole = train_ranks(ranks, with(base, first.changes), 6)[0].losses;
    CHECK((again == std::vector<double>(whole.begin() + 3, whole.end())));
  }
}

TEST_CASE("only the rank that computed a value that is not finite reports its place") {
  const StrategyCase strategy = GENERATE(from_range(kStrategies));
  if (strategy.min_ranks > 3) return;
  CAPTURE(strategy.name);
  const Recipe r = tiny(with({"train.micro_batch_size=1"}, strategy.changes), 3);
  std::vector<std::string> messages(3);
  std::string poisoned;
  comm::run_thread_ranks(3, [&](comm::World& world) {
    const auto device = Device::cpu(1, {.stream_sanitizer = true});
    train::Trainer trainer = make_trainer(*device, r, std::make_shared<CountingData>(), world);
    trainer.change_weights([&] {
      if (world.rank() != 1) return;
      // A parameter of which this rank owns some elements.
      for (model::Parameter* p : trainer.params().units()[2]->params) {
        const auto parts = owned_parts(*p);
        if (parts.empty() || parts[0].count < 6) continue;
        poisoned = p->name;
        std::vector<float> values(size_t(p->real_count()), 0.0f);
        values[size_t(parts[0].in_param + 5)] = std::numeric_limits<float>::quiet_NaN();
        trainer.params().set_master(trainer.compute(), *p, values);
        break;
      }
    });
    try {
      trainer.step();
    } catch (const RunError& e) {
      messages[size_t(world.rank())] = "run: " + e.message();
    } catch (const CommError& e) {
      messages[size_t(world.rank())] = "comm: " + e.message();
    }
  });
  CAPTURE(messages[0], messages[1], messages[2]);
  REQUIRE_FALSE(poisoned.empty());
  CHECK(messages[1].find("run: step 1") == 0);
  CHECK(messages[1].find(poisoned) != std::string::npos);
  for (const int rank : {0, 2}) CHECK(messages[size_t(rank)].find("comm: step 1") == 0);
}

}  // namespace parity_data_parallel_test
