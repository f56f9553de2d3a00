// A training's losses do not depend on threads, micro-batches, recomputation or a restart; watched
// by the stream sanitizer.
#include <atomic>
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "run/run_checkpoint.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"
#include "train/trainer.h"

namespace parity_single_rank_test {

using namespace mtrain;
using namespace train_testing;

namespace {

struct Run {
  explicit Run(const Recipe& r, int threads = 1) : Run(plan::make_plan(r, 1, kVocab), threads) {}
  explicit Run(RunPlan plan, int threads = 1,
               std::shared_ptr<data::Dataset> data = std::make_shared<CountingData>())
      : device(Device::cpu(threads, {.stream_sanitizer = true})),
        trainer(train::build_trainer(*device, std::move(plan), std::move(data))) {}
  std::vector<double> losses(int64_t steps) {
    std::vector<double> out;
    for (int64_t i = 0; i < steps; ++i) out.push_back(trainer.step().loss);
    return out;
  }
  std::vector<float> weights() {
    std::vector<float> all;
    for (model::Parameter* p : trainer.params().params()) {
      const auto w = p->master.to_host<float>(trainer.compute());
      all.insert(all.end(), w.begin(), w.end());
    }
    return all;
  }
  std::unique_ptr<Device> device;
  train::Trainer trainer;
};

}  // namespace

TEST_CASE("the loss starts at that of a uniform guess and falls") {
  Run run(tiny());
  const auto losses = run.losses(20);
  CHECK(losses.front() == Approx(std::log(double(kVocab))).margin(0.05));
  CHECK(losses.back() < 0.75 * losses.front());
}

TEST_CASE("one thread and three give the same bits") {
  Run one(tiny()), three(tiny(), 3);
  CHECK(one.losses(5) == three.losses(5));
  CHECK((one.weights() == three.weights()));  // parentheses: Catch prints no numbers
}

TEST_CASE("accumulation over micro-batches changes only the order of sums") {
  Run whole(tiny());
  const auto reference = whole.losses(20);
  for (const char* micro :
       {"train.micro_batch_size=1", "train.micro_batch_size=2", "train.micro_batch_size=3"})
    // The numerics contract: 20 losses to 1e-5 relative in fp32.
    check_close(reference, Run(tiny({micro})).losses(20), 1e-5);
}

TEST_CASE("the logits' chunks change only the order of sums") {
  const auto in_chunks = [](const Recipe& r, int64_t rows) {
    RunPlan plan = plan::make_plan(r, 1, kVocab);
    CHECK(plan.logits_rows == plan.layout.micro_batch * kSeq);  // few enough to exist at once
    plan.logits_rows = rows;
    return Run(std::move(plan)).losses(5);
  };
  const Recipe few = tiny();
  const auto reference = Run(few).losses(5);
  for (const int64_t rows : {1, 7}) check_close(reference, in_chunks(few, rows), 1e-5);
  // The recipe chooses them: seven rows of fp32 logits.
  const std::string gb =
      fmt::format("train.logits_gb={}", 7 * plan::padded_vocab(kVocab, 1) * 4 * 1e-9);
  CHECK(Run(tiny({gb})).losses(5) == in_chunks(few, 7));
  const Recipe capped = tiny({"model.final_logit_softcapping=0.5", "model.embedding_multiplier=3",
                              "model.logits_scaling=3"});
  check_close(Run(capped).losses(5), in_chunks(capped, 7), 1e-5);
  const Recipe many = tiny({fmt::format("train.global_batch_size={}", 2400 / kSeq),
                            fmt::format("train.micro_batch_size={}", 2400 / kSeq)});
  check_close(Run(many).losses(5), in_chunks(many, 1280), 1e-5);
}

TEST_CASE("recomputation gives the same bits, with dropout too") {
  const std::vector<std::string> dropout{"model.hidden_dropout=0.1", "model.embedding_dropout=0.1",
                                         "model.residual_multiplier=0.4",
                                         "train.micro_batch_size=3"};
  Run kept(tiny(dropout));
  const auto reference = kept.losses(5);
  for (const auto& policy : std::vector<std::vector<std::string>>{
           {"recompute.granularity=selective"},
           {"recompute.granularity=selective", "recompute.modules=[mlp]"},
           {"recompute.granularity=selective", "recompute.modules=[core_attn,mlp,layernorm]"},
           {"recompute.granularity=full", "recompute.method=uniform", "recompute.num_layers=1"},
           {"recompute.granularity=full", "recompute.method=uniform", "recompute.num_layers=2"},
           {"recompute.granularity=full", "recompute.method=block", "recompute.num_layers=1"}}) {
    auto changes = dropout;
    changes.insert(changes.end(), policy.begin(), policy.end());
    CHECK(Run(tiny(changes)).losses(5) == reference);
  }
}

TEST_CASE("an output_dtype that is shorter rounds logits, a wider one changes no bit") {
  const auto losses = [](const char* weights, const char* outputs) {
    return Run(tiny({fmt::format("mixed_precision.name={}", weights),
                     fmt::format("distributed.mp_policy.output_dtype={}", outputs)}))
        .losses(20);
  };
  const auto fp32 = losses("fp32", "auto"), rounded = losses("fp32", "bf16");
  CHECK(rounded != fp32);
  check_close(fp32, rounded, 2e-2);  // the bound of bf16's losses
  // The first loss differs by the rounding of logits about 0.1 in size alone.
  CHECK(std::abs(rounded[0] - fp32[0]) < 1e-3 * fp32[0]);
  CHECK(losses("bf16_mixed", "fp32") == losses("bf16_mixed", "auto"));
}

TEST_CASE("bf16 follows fp32") {
  const auto reference = Run(tiny()).losses(20);
  // The numerics contract: bf16 losses to 2e-2.
  check_close(reference, Run(tiny({"mixed_precision.name=bf16_mixed"})).losses(20), 2e-2);
}

TEST_CASE("a resumed run continues with the same bits") {
  for (const char* precision : {"mixed_precision.name=fp32", "mixed_precision.name=bf16_mixed"}) {
    const TemporaryFolder root;
    const Recipe recipe = tiny({precision, "model.hidden_dropout=0.1"});
    Run straight(recipe), first(recipe), second(recipe);
    const auto reference = straight.losses(8);
    first.losses(5);
    const auto folder = run::save_run(first.trainer, root.path);
    second.losses(2);  // its own steps must not matter
    run::resume_run(second.trainer, folder);
    CHECK(second.losses(3) == std::vector<double>(reference.begin() + 5, reference.end()));
    CHECK((second.weights() == straight.weights()));
  }
}

namespace {

// Records the last sample that was read. Samples from `broken` on cannot be read.
struct WatchedData : CountingData {
  explicit WatchedData(int64_t first_broken = 1 << 20) : broken(first_broken) {}
  void sample(int64_t index, data::Sample& out) const override {
    if (index >= broken) throw RunError("this sample is broken");
    for (int64_t known = last; known < index && !last.compare_exchange_weak(known, index);) {
    }
    CountingData::sample(index, out);
  }
  const int64_t broken;
  mutable std::atomic<int64_t> last = -1;
};

}  // namespace

TEST_CASE("a step's batch is made during the step before it, and none after the last step") {
  const Recipe recipe = tiny({"train.micro_batch_size=2", "train.steps=3"});
  const auto data = std::make_shared<WatchedData>();
  Run run(plan::make_plan(recipe, 1, kVocab), 1, data);
  for (int64_t step = 1; step < 3; ++step) {
    run.trainer.step();
    CHECK(data->last >= 6 * (step + 1) - 1);
  }
  run.trainer.step();
  CHECK(data->last < 6 * 3 + 2);  // the loader may have begun the next micro-batch
}

TEST_CASE("a prefetched batch is neither lost nor repeated if the run ends before it") {
  const TemporaryFolder root;
  const Recipe recipe = tiny({"train.micro_batch_size=2"});
  Run straight(recipe), resumed(recipe);
  const auto reference = straight.losses(4);
  // The third batch cannot be made: the second step still succeeds, and the third fails.
  Run ended(plan::make_plan(recipe, 1, kVocab), 1, std::make_shared<WatchedData>(6 * 2 + 3));
  CHECK(ended.losses(2) == std::vector<double>(reference.begin(), reference.begin() + 2));
  CHECK_THROWS_WITH(ended.trainer.step(), Catch::Contains("this sample is broken"));
  CHECK(ended.trainer.steps_done() == 2);
  run::resume_run(resumed.trainer, run::save_run(ended.trainer, root.path));
  CHECK(resumed.losses(2) == std::vector<double>(reference.begin() + 2, reference.end()));
  CHECK((resumed.weights() == straight.weights()));
  // A batch that was prepared for another step is not used.
  Run further(recipe);
  further.losses(3);
  const TemporaryFolder other;
  Run first(recipe);
  first.losses(1);
  run::resume_run(further.trainer, run::save_run(first.trainer, other.path));
  CHECK(further.losses(3) == std::vector<double>(reference.begin() + 1, reference.end()));
}

TEST_CASE("a checkpoint of another model or seed is refused by name") {
  const TemporaryFolder root;
  Run saved(tiny());
  saved.losses(1);
  const auto folder = run::save_run(saved.trainer, root.path);
  Run wider(tiny({"model.ffn_hidden_size=96"})), reseeded(tiny({"train.seed=5"}));
  CHECK_THROWS_WITH(run::resume_run(wider.trainer, folder),
                    Catch::Contains("model.ffn_hidden_size"));
  CHECK_THROWS_WITH(run::resume_run(reseeded.trainer, folder), Catch::Contains("train.seed"));
  // Models with the same parameters but different computations.
  const TemporaryFolder other;
  Run tanh(tiny({"model.activation=gelu_tanh"})), erf(tiny({"model.activation=gelu"}));
  tanh.losses(1);
  const auto of_tanh = run::save_run(tanh.trainer, other.path);
  CHECK_THROWS_WITH(run::resume_run(erf.trainer, of_tanh), Catch::Contains("model.activation"));
}

TEST_CASE("a loss that is not finite names the first tensor, and nothing is updated") {
  Run run(tiny());
  run.losses(2);
  SECTION("a parameter") {
    model::Parameter* p = run.trainer.params().find("layers.1.mlp.down.weight");
    auto values = p->master.to_host<float>(run.trainer.compute());
    values[5] = std::numeric_limits<float>::quiet_NaN();
    run.trainer.params().set_master(run.trainer.compute(), *p, values);
    CHECK_THROWS_WITH(run.trainer.step(),
                      Catch::Contains("layers.1.mlp.down.weight") && Catch::Contains("element 5"));
  }
  SECTION("gradients that overflow where the loss does not, which may be left unchecked") {
    // The MLP's input and output are 0, and its weights make any gradient overflow fp32.
    const bool checked = GENERATE(true, false);
    Run plain(tiny({"model.activation=gelu", "distributed.strategy=ddp",
                    fmt::format("ddp.check_for_nan_in_grad={}", checked)}));
    plain.losses(2);
    const auto fill = [&](const std::string& name, float value) {
      model::Parameter* p = plain.trainer.params().find("layers.1.mlp." + name);
      plain.trainer.params().set_master(plain.trainer.compute(), *p,
                                        std::vector<float>(size_t(p->full_shape().count()), value));
    };
    fill("norm.weight", 0), fill("up.weight", 1e30f), fill("down.weight", 1e30f);
    const auto before = plain.weights();
    if (checked) {
      CHECK_THROWS_WITH(plain.trainer.step(), Catch::Contains("not finite"));
    } else {
      const train::StepStats stats = plain.trainer.step();
      CHECK(std::isfinite(stats.loss));
      CHECK_FALSE(std::isfinite(stats.grad_norm));
      CHECK(plain.trainer.steps_done() == 3);
    }
    CHECK((plain.weights() == before));
    // A loss that is not finite stops the run in either case.
    fill("norm.weight", std::numeric_limits<float>::quiet_NaN());
    CHECK_THROWS_WITH(plain.trainer.step(), Catch::Contains("layers.1.mlp.norm.weight"));
  }
  SECTION("an overflow inside the model") {
    model::Parameter* p = run.trainer.params().find("layers.1.attention.qkv.weight");
    auto values = p->master.to_host<float>(run.trainer.compute());
    for (float& v : values) v = 3e38f;
    run.trainer.params().set_master(run.trainer.compute(), *p, values);
    const auto before = run.weights();
    CHECK_THROWS_WITH(run.trainer.step(),
                      Catch::Contains("matmul_qkv_fwd") && Catch::Contains("layers.1.attention"));
    CHECK((run.weights() == before));
    CHECK(run.trainer.steps_done() == 2);
  }
}

}  // namespace parity_single_rank_test
