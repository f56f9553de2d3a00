// Tests gathers into registered memory: a rank's own part is first copied to its place, and the
// results have the bits of plain gathers. CPUs register nothing, so the copies are what they show.
#include <catch2/catch.hpp>

#include "plan/run_plan.h"
#include "train/build_trainer.h"
#include "train_ranks.h"

namespace parity_registered_gather_test {

using namespace mtrain;
using namespace train_testing;

namespace {

std::vector<Result> trained(int ranks, const Changes& changes, bool registered) {
  const Recipe r =
      tiny(with({"train.global_batch_size=8", "train.micro_batch_size=1"}, changes), ranks);
  std::vector<Result> results(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    const auto data = std::make_shared<CountingData>();
    RunPlan plan = plan::make_plan(r, ranks, kVocab);
    plan::DataParallelOptions& o = plan.data_parallel;
    o.gather.registered = o.gather.symmetric = registered;
    o.gather_updated.registered = o.gather_updated.symmetric = registered;
    train::Trainer t = train::build_trainer(rank.device, std::move(plan), data, rank.world);
    Result& result = results[size_t(rank.rank())];
    for (int i = 0; i < 3; ++i) {
      const train::StepStats s = t.step();
      result.losses.push_back(s.loss);
      result.norms.push_back(s.grad_norm);
    }
    result.weights = full_weights(t);
  });
  return results;
}

}  // namespace

TEST_CASE("gathers in place have the bits of gathers from a rank's own part") {
  const Changes experts{"model.moe.num_experts=4", "model.moe.ffn_hidden_size=48",
                        "distributed.ep_size=2"};
  for (const Changes& c :
       {Changes{"distributed.strategy=fsdp2"},
        {"distributed.strategy=fsdp2", "mixed_precision=bf16_mixed"},
        {"distributed.strategy=fsdp2", "debug.emulate_fp8=true",
         "mixed_precision={name: bf16_mixed, fp8: hybrid, fp8_param_gather: true}"},
        {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=3"},
        {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2"},
        {"distributed.strategy=megatron_ddp", "mixed_precision=bf16_mixed"},
        {"distributed.strategy=megatron_ddp", "debug.emulate_fp8=true",
         "mixed_precision={name: bf16_mixed, fp8: hybrid, fp8_param_gather: true}"},
        with({"distributed.strategy=megatron_ddp"}, experts),
        with({"distributed.strategy=fsdp2"}, experts)}) {
    CAPTURE(c);
    const auto plain = trained(4, c, false), registered = trained(4, c, true);
    for (size_t r = 0; r < plain.size(); ++r) {
      CHECK(plain[r].losses == registered[r].losses);
      CHECK(plain[r].norms == registered[r].norms);
      CHECK((plain[r].weights == registered[r].weights));
    }
  }
}

}  // namespace parity_registered_gather_test
