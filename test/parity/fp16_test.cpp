// Tests training in fp16 with a scaled loss: an overflow on one rank skips the update on all, the
// scale follows its rules, layouts agree with a single rank, and a resumed run continues bit for
// bit.
#include <cmath>
#include <cstring>
#include <limits>

#include <catch2/catch.hpp>

#include "ops/elementwise.h"
#include "run/run_checkpoint.h"
#include "test/support/temporary_folder.h"
#include "train_ranks.h"

namespace parity_fp16_test {

using namespace mtrain;
using namespace train_testing;
using Catch::Matchers::Contains;

namespace {

const Changes kFp16{"mixed_precision.name=fp16_mixed"};

struct Layout {
  const char* name;
  int ranks;
  Changes changes;
};
const std::vector<Layout> kLayouts{
    {"ddp", 2, {"distributed.strategy=ddp", "ddp.bucket_size=9000"}},
    {"ddp, fp16 on the wire", 2, {"distributed.strategy=ddp", "ddp.grad_reduce_in_fp32=false"}},
    {"megatron_ddp", 2, {"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"}},
    {"megatron_ddp without overlap",
     2,
     {"distributed.strategy=megatron_ddp", "ddp.overlap_grad_reduce=false"}},
    {"megatron_fsdp 3",
     2,
     {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=3"}},
    {"fsdp2, fp16 on the wire", 2, {"distributed.strategy=fsdp2"}},
    {"fsdp2, fp32 on the wire",
     3,
     {"distributed.strategy=fsdp2",
      "distributed.mp_policy={param_dtype: float16, reduce_dtype: float32}"}},
    {"tp", 2, {"distributed.tp_size=2"}},
    {"tp with more ranks than kv heads", 4, {"distributed.tp_size=4"}},
    {"tp, sequence", 2, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
    {"cp", 2, {"distributed.cp_size=2"}},
    {"pp, tied",
     2,
     {"distributed.pp_size=2", "distributed.pipeline={}",
      "model.share_embeddings_and_output_weights=true"}},
    {"pp, zero bubble",
     2,
     {"distributed.pp_size=2", "distributed.vpp_size=1",
      "distributed.pipeline.pp_schedule=zero_bubble"}},
    {"tp, pp, dp",
     8,
     {"distributed.tp_size=2", "distributed.pp_size=2", "distributed.pipeline={}",
      "distributed.strategy=megatron_ddp", "model.share_embeddings_and_output_weights=true"}}};
const Changes kBatch{"train.global_batch_size=12", "train.micro_batch_size=1"};

// The training state of this rank: master weights and moments.
std::vector<float> state_of(train::Trainer& t) {
  std::vector<float> all;
  const auto add = [&](const Tensor& x) {
    if (!x) return;
    const auto values = x.to_host_float(t.compute());
    all.insert(all.end(), values.begin(), values.end());
  };
  for (model::ParamUnit* unit : t.params().units()) {
    for (const model::OwnedRange& range : unit->owned) add(range.master);
    for (const optim::StateTensor& tensor : t.optimizer().state())
      add(tensor.values.own(t.compute(), *unit));
  }
  return all;
}
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Writes infinity into one element of a gradient: that of the parameter whose name contains `name`.
void spoil_gradients(train::Trainer& t, const std::string& name) {
  t.set_gradient_hook([&t, name](model::Parameter& p) {
    if (p.name.find(name) == std::string::npos) return;
    ops::fill(t.compute(), p.grad.flat(p.grad.count() - 1, {1}),
              std::numeric_limits<float>::infinity());
  });
}

struct Watched {
  std::vector<train::StepStats> steps;
  std::vector<char> unchanged;  // by step: whether it left the training state as it was
  checkpoint::TrainProgress progress;
};
// Trains 4 steps; in the second, rank `culprit` has an infinite gradient.
std::vector<Watched> train_with_overflow(const Layout& l, int culprit, const std::string& name) {
  const Recipe r = tiny(with(with(kFp16, kBatch), l.changes), l.ranks);
  std::vector<Watched> ranks(size_t(l.ranks));
  run_ranks(l.ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    Watched& w = ranks[size_t(rank.rank())];
    for (int step = 1; step <= 4; ++step) {
      const auto before = state_of(t);
      if (step == 2 && rank.rank() == culprit) spoil_gradients(t, name);
      w.steps.push_back(t.step());
      t.set_gradient_hook({});
      w.unchanged.push_back(same_bits(before, state_of(t)));
    }
    w.progress = t.progress();
  });
  return ranks;
}

struct Run {
  explicit Run(const Changes& changes)
      : device(Device::cpu(1, {.stream_sanitizer = true})),
        trainer(
            make_trainer(*device, tiny(with(kFp16, changes)), std::make_shared<CountingData>())) {}
  std::vector<train::StepStats> steps(int64_t n) {
    std::vector<train::StepStats> out;
    for (int64_t i = 0; i < n; ++i) out.push_back(trainer.step());
    return out;
  }
  std::unique_ptr<Device> device;
  train::Trainer trainer;
};

std::vector<double> losses(const std::vector<train::StepStats>& steps) {
  std::vector<double> out;
  for (const train::StepStats& s : steps) out.push_back(s.loss);
  return out;
}
std::vector<double> scales(const std::vector<train::StepStats>& steps) {
  std::vector<double> out;
  for (const train::StepStats& s : steps) out.push_back(s.loss_scale);
  return out;
}

}  // namespace

TEST_CASE("fp16 follows fp32, and its norms are those of unscaled gradients") {
  const Result wide = train_alone({}, 20);
  for (const Changes& scale : std::vector<Changes>{{}, {"optimizer.loss_scale=4096"}}) {
    const Result half = train_alone(with(kFp16, scale), 20);
    check_close(wide.losses, half.losses, 2e-2);
    CHECK(half.norms[0] == Approx(wide.norms[0]).epsilon(1e-2));
    CHECK(half.losses != wide.losses);
  }
  for (const char* family : {"gpt2", "qwen2", "qwen3", "mistral"}) {
    CAPTURE(family);
    const Changes model{fmt::format("model.architecture={}", family)};
    check_close(train_alone(model, 10).losses, train_alone(with(kFp16, model), 10).losses, 2e-2);
  }
}

TEST_CASE("fp16 under every layout follows a single rank in fp16") {
  std::map<Changes, Result> alone;
  for (const Layout& l : kLayouts) {
    CAPTURE(l.name);
    Changes model = with(kFp16, kBatch);
    if (std::ranges::count(l.changes, "model.share_embeddings_and_output_weights=true"))
      model.push_back("model.share_embeddings_and_output_weights=true");
    if (!alone.count(model)) alone[model] = train_alone(model, 10);
    const auto ranks = train_ranks(l.ranks, with(with(kFp16, kBatch), l.changes), 10);
    check_close(alone[model].losses, ranks[0].losses, 2e-2);
    // A factor on all gradients hardly changes Adam's losses, but it changes the norm.
    CHECK(ranks[0].norms[0] == Approx(alone[model].norms[0]).epsilon(2e-2));
    for (const Result& other : ranks) {
      CHECK((other.losses == ranks[0].losses));
      CHECK((other.norms == ranks[0].norms));
    }
  }
}

TEST_CASE("messages in fp16 train alike over every backend") {
  for (const char* name : {"ddp, fp16 on the wire", "tp, sequence", "cp", "pp, tied"}) {
    const auto l = std::ranges::find(kLayouts, std::string(name), &Layout::name);
    REQUIRE(l != kLayouts.end());
    CAPTURE(name);
    const Changes changes = with(with(kFp16, kBatch), l->changes);
    const auto thread = train_ranks(l->ranks, changes, 5);
    CHECK((train_ranks(l->ranks, changes, 5, "shared_memory")[0].losses == thread[0].losses));
    const auto gloo = train_ranks(l->ranks, changes, 5, "gloo");
    check_close(thread[0].losses, gloo[0].losses, 2e-2);
    CHECK((gloo[1].losses == gloo[0].losses));
  }
}

TEST_CASE("an infinite gradient on one rank skips the update on all, and halves the scale") {
  std::vector<Layout> layouts = kLayouts;
  layouts.push_back({"Muon, fsdp2", 2, {"optimizer.name=muon", "distributed.strategy=fsdp2"}});
  layouts.push_back({"Muon, tp", 2, {"optimizer.name=muon", "distributed.tp_size=2"}});
  for (const Layout& l : layouts)
    for (const int culprit : {0, l.ranks - 1})
      // A weight of a GEMM, and a norm's, which ranks of tensor parallelism replicate.
      for (const char* name : {"qkv", "norm"}) {
        CAPTURE(l.name, culprit, name);
        const auto ranks = train_with_overflow(l, culprit, name);
        for (const Watched& w : ranks) {
          CHECK(scales(w.steps) == std::vector<double>{65536, 65536, 32768, 32768});
          for (size_t i = 0; i < 4; ++i) {
            CAPTURE(i);
            CHECK(w.steps[i].overflowed == (i == 1));
            CHECK(std::isfinite(w.steps[i].grad_norm) == (i != 1));
            CHECK(bool(w.unchanged[i]) == (i == 1));
            CHECK(w.steps[i].loss == ranks[0].steps[i].loss);
          }
          CHECK(w.progress.updates == 3);
          CHECK(w.steps[2].lr == w.steps[1].lr);  // the rate of the skipped update
        }
      }
}

TEST_CASE("the scale grows until gradients overflow, and training follows fp32") {
  Run run({"optimizer.loss_scale_window=1", "mixed_precision.initial_loss_scale=1048576"});
  const auto steps = run.steps(40);
  int64_t overflows = 0;
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    const double factor = steps[i].overflowed ? 0.5 : 2;
    CHECK(steps[i + 1].loss_scale == factor * steps[i].loss_scale);
    overflows += steps[i].overflowed;
  }
  CHECK(overflows > 5);  // the largest gradients of logits are about a hundredth
  CHECK(overflows < 25);
  CHECK(steps.back().loss < 0.75 * steps.front().loss);
  CHECK(run.trainer.progress().updates == 40 - overflows - steps.back().overflowed);
}

TEST_CASE("a resumed run in fp16 continues with the same bits, scale and counts") {
  const Changes changes{"optimizer.loss_scale_window=3", "optimizer.hysteresis=2",
                        "model.hidden_dropout=0.1", "lr_scheduler.warmup_steps=6"};
  const auto overflow = [](Run& run) {
    spoil_gradients(run.trainer, "qkv");
    const auto step = run.trainer.step();
    run.trainer.set_gradient_hook({});
    return step;
  };
  const TemporaryFolder root;
  Run straight(changes), first(changes), second(changes);
  for (Run* run : {&straight, &first}) {
    run->steps(3);   // the scale grows
    overflow(*run);  // one more halves it
    run->steps(1);
  }
  const auto folder = run::save_run(first.trainer, root.path);
  second.steps(2);  // its own steps must not matter
  run::resume_run(second.trainer, folder);
  std::vector<std::vector<train::StepStats>> after;
  for (Run* run : {&straight, &second}) {
    after.push_back(run->steps(1));
    after.back().push_back(overflow(*run));
    for (const train::StepStats& s : run->steps(5)) after.back().push_back(s);
  }
  CHECK(losses(after[0]) == losses(after[1]));
  CHECK(scales(after[0]) == scales(after[1]));
  CHECK(scales(after[0]) ==
        std::vector<double>{131072, 131072, 65536, 65536, 65536, 131072, 131072});
  for (size_t i = 0; i < after[0].size(); ++i) CHECK(after[0][i].lr == after[1][i].lr);
  CHECK(straight.trainer.progress().updates == 10);
  CHECK(second.trainer.progress().updates == 10);
  CHECK(same_bits(state_of(straight.trainer), state_of(second.trainer)));
  CHECK(straight.trainer.progress().loss_scale == second.trainer.progress().loss_scale);
}

TEST_CASE("a checkpoint of another precision begins with the scale of the recipe") {
  const TemporaryFolder root;
  Run saved({"mixed_precision.name=bf16_mixed"}), resumed({"optimizer.initial_loss_scale=512"});
  saved.steps(3);
  run::resume_run(resumed.trainer, run::save_run(saved.trainer, root.path));
  CHECK(resumed.trainer.progress().updates == 3);
  CHECK(resumed.trainer.step().loss_scale == 512);
}

TEST_CASE("an overflow at the smallest scale ends the run on every rank") {
  const Recipe r = tiny(with(with(kFp16, kBatch), {"optimizer.initial_loss_scale=4",
                                                   "mixed_precision.min_loss_scale=2"}),
                        2);
  run_ranks(2, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    if (rank.rank() == 1) spoil_gradients(t, "qkv");
    CHECK(t.step().overflowed);
    CHECK_THROWS_WITH(t.step(), Contains("step 2") && Contains("minimum, 2"));
  });
}

TEST_CASE("in fp16, too, a loss that is not finite ends the run and names the tensor") {
  Run run({});
  run.steps(1);
  model::Parameter* p = run.trainer.params().params().back();
  run.trainer.change_weights([&] {
    run.trainer.params().set_master(run.trainer.compute(), *p,
                                    std::vector<float>(size_t(p->full_shape().count()), 1e9f));
  });
  CHECK_THROWS_AS(run.trainer.step(), RunError);
}

}  // namespace parity_fp16_test
