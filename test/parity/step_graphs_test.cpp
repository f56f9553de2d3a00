// Tests steps as two graphs, one of all micro-batches and one of the update: they have the bits of
// single launches. Runs on a CPU backend that captures graphs, under the stream sanitizer.
#include <catch2/catch.hpp>

#include "ops/elementwise.h"
#include "run/run_checkpoint.h"
#include "test/support/graph_testing.h"
#include "test/support/temporary_folder.h"
#include "train_experts_testing.h"
#include "train_fp8_testing.h"

namespace parity_step_graphs_test {

using namespace mtrain;
using namespace train_testing;

namespace {

constexpr int64_t kSteps = 20, kSaved = 10, kEvaluated = 7, kSurprise = 13;

struct StepRun {
  Result result;
  std::vector<std::vector<double>> experts;  // the statistics of each step
  std::vector<double> scales, rates;         // of the loss, and the learning rates
  int64_t replays = 0, update_replays = 0;
  std::string plan, failure;
};

std::unique_ptr<Device> recording(const std::string& refused = "") {
  return Device::on(std::make_unique<RecordingBackend>(refused), {.stream_sanitizer = true});
}

// Accumulation, a gradient norm that is clipped, and a learning rate that changes in each step.
const Changes kBase{"train.global_batch_size=8", "train.micro_batch_size=2",
                    "optimizer.clip_grad=0.5", "lr_scheduler.warmup_steps=6",
                    "optimizer.weight_decay=0.1"};

enum class As { single, micro_batches, steps };

Recipe recipe_of(const Changes& changes, As as) {
  Recipe r = tiny(with(kBase, changes));
  r.train.device = recipe::DeviceChoice::cuda;
  r.train.enable_cuda_graph = as != As::single;
  r.train.cuda_graph_scope =
      as == As::steps ? recipe::GraphScope::full_iteration : recipe::GraphScope::micro_batch;
  return r;
}

void add(StepRun& run, const train::StepStats& s) {
  run.result.losses.push_back(s.loss);
  // NaN, which equals nothing, is -1 here.
  run.result.norms.push_back(std::isnan(s.grad_norm) ? -1 : s.grad_norm);
  run.scales.push_back(s.loss_scale);
  run.rates.push_back(s.lr);
  if (s.experts)
    run.experts.push_back({s.experts->balance_loss, s.experts->z_loss, s.experts->load_max,
                           s.experts->load_variation, s.experts->dropped});
}

void note_end(StepRun& run, train::Trainer& trainer) {
  run.result.weights = full_weights(trainer);
  if (!trainer.graphs()) return;
  run.replays += trainer.graphs()->replays();
  run.update_replays += trainer.graphs()->update_replays();
  run.failure += trainer.graphs()->take_failure();
  run.plan = print_cuda_graphs(trainer.graphs()->plan());
}

// Trains 20 steps. After 10 of them a checkpoint is saved, from which a second trainer continues if
// `resumes`. The seventh step is followed by an evaluation that is known before, as in a run; the
// thirteenth by one that is not, so that the next step may have begun.
StepRun train_steps(const Changes& changes, As as, bool ahead, bool resumes = false,
                    const std::string& refused = "") {
  const Recipe r = recipe_of(changes, as);
  const auto device = recording(refused);
  const auto data = std::make_shared<CountingData>();
  const data::ValidationLoader validation(data, 5, {.micro_batch = 2});
  const TemporaryFolder folder;
  StepRun run;
  // A trainer cannot be moved.
  const auto make = [&] {
    return std::unique_ptr<train::Trainer>(new train::Trainer(make_trainer(*device, r, data)));
  };
  auto trainer = make();
  for (int64_t i = 1; i <= kSteps; ++i) {
    add(run, trainer->step(ahead && i != kEvaluated && i != kSaved && i != kSteps));
    if (i == kEvaluated || i == kSurprise)
      run.result.losses.push_back(trainer->evaluate(validation));
    if (i != kSaved) continue;
    const std::string saved = run::save_run(*trainer, folder.path).string();
    if (!resumes) continue;
    note_end(run, *trainer);
    trainer = make();
    run::resume_run(*trainer, saved);
  }
  note_end(run, *trainer);
  return run;
}

void check_same(const StepRun& a, const StepRun& b) {
  CHECK((a.result.losses == b.result.losses));
  CHECK((a.result.norms == b.result.norms));
  CHECK((a.result.weights == b.result.weights));
  CHECK((a.experts == b.experts));
  CHECK(a.scales == b.scales);
  CHECK(a.rates == b.rates);
}

struct Case {
  const char* name;
  Changes changes;
  int64_t single = 1;  // steps whose micro-batches run as single launches
};

std::vector<Case> cases() {
  const Changes dropout{"model.hidden_dropout=0.2", "model.embedding_dropout=0.1"},
      bf16{"mixed_precision.name=bf16_mixed"}, no_masters{"optimizer.master_weights=false"};
  return {
      {"fp32", {}},
      {"dropout", dropout},
      {"bf16, dropout, recomputation",
       with(bf16, with(dropout, {"recompute.granularity=full", "model.architecture=gpt2",
                                 "model.num_query_groups=4"}))},
      {"tied embeddings, no clipping",
       {"model.share_embeddings_and_output_weights=true", "optimizer.clip_grad=0"}},
      {"one micro-batch", {"train.micro_batch_size=8"}},
      {"L2 decay, groups with rates of their own",
       {"optimizer.name=adam", "optimizer.decoupled_weight_decay=false",
        "optimizer.groups=[{match: qkv, lr_scale: 0.5}, {match: norm, lr: 1e-3}]"}},
      {"bf16 weights, rounded at random", with(bf16, no_masters)},
      {"bf16 moments", with(bf16, {"optimizer.moments=bf16"})},
      {"bf16 weights and moments", with(bf16, with(no_masters, {"optimizer.moments=bf16"}))},
      {"fp16",
       {"mixed_precision.name=fp16_mixed", "mixed_precision.initial_loss_scale=65536",
        "mixed_precision.loss_scale_window=2"}},
      {"muon", {"optimizer.name=muon"}},
      {"muon, bf16", with(bf16, {"optimizer.name=muon"})},
      {"experts", kShared},
      {"experts whose routers have state", kBalanced, 2},
      {"8 bits", kTensorwise},
      {"8 bits, scales of earlier steps", kDelayed, 2},
  };
}

}  // namespace

TEST_CASE("steps of two graphs have the bits of single launches, for each kind of training") {
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    const StepRun single = train_steps(c.changes, As::single, false),
                  steps = train_steps(c.changes, As::steps, false);
    CHECK(steps.failure == "");
    CHECK_THAT(steps.plan, Catch::Contains("its update another"));
    CHECK(steps.replays == kSteps - c.single);
    CHECK(steps.update_replays == kSteps - 1);
    check_same(single, steps);
    CHECK(single.result.losses.back() < 0.99 * single.result.losses.front());
  }
}

TEST_CASE("steps of two graphs run ahead, and resume, with the same bits") {
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    const StepRun single = train_steps(c.changes, As::single, false),
                  steps = train_steps(c.changes, As::steps, true, true);
    CHECK(steps.failure == "");
    // Each of the two trainers runs a first update as single launches.
    CHECK(steps.update_replays == kSteps - 2);
    CHECK(steps.replays >= kSteps - 2 * c.single);
    check_same(single, steps);
  }
}

TEST_CASE("a step of two graphs enqueues the same few items, however many layers there are") {
  const auto items = [](As as, int layers) {
    const auto device = recording();
    const Recipe r = recipe_of({fmt::format("model.num_layers={}", layers)}, as);
    train::Trainer trainer = make_trainer(*device, r, std::make_shared<CountingData>());
    for (int i = 0; i < 4; ++i) trainer.step(true);
    const uint64_t before = trainer.compute().enqueued();
    trainer.step(true);
    return trainer.compute().enqueued() - before;
  };
  // Three inputs of each of 4 micro-batches, the arguments of the update, two replays, and the
  // copies of loss and norm for the host. The scale of the gradients is that of the step before.
  constexpr uint64_t kItems = 4 * 3 + 1 + 2 + 2;
  CHECK(items(As::steps, 2) == kItems);
  CHECK(items(As::steps, 6) == kItems);
  CHECK(items(As::micro_batches, 6) > 2 * kItems);
  CHECK(items(As::single, 6) > 10 * kItems);
}

TEST_CASE("a gradient that is not finite changes nothing in an update that is a graph") {
  const auto run = [](As as) {
    const auto device = recording();
    const Recipe r = recipe_of({"debug.check_nan=false"}, as);
    train::Trainer trainer = make_trainer(*device, r, std::make_shared<CountingData>());
    int calls = 0;  // for the gradient of this weight, one per micro-batch
    trainer.set_gradient_hook([&](model::Parameter& p) {
      if (p.name != "layers.1.attention.qkv.weight" || ++calls != 4 * 5) return;
      ops::fill(trainer.compute(), p.grad, 1e30f);
      ops::scale(trainer.compute(), p.grad, 1e30f);
    });
    StepRun out;
    for (int i = 1; i <= 8; ++i) {
      const train::StepStats s = trainer.step(i < 8);
      CHECK(std::isfinite(s.grad_norm) == (i != 5));
      add(out, s);
    }
    note_end(out, trainer);
    return out;
  };
  const StepRun single = run(As::single), steps = run(As::steps);
  CHECK(steps.update_replays == 7);
  check_same(single, steps);
}

TEST_CASE("a step that is not finite is explained launch by launch, as without graphs") {
  const auto message = [](As as) -> std::string {
    const auto device = recording();
    train::Trainer trainer =
        make_trainer(*device, recipe_of({}, as), std::make_shared<CountingData>());
    for (int i = 0; i < 3; ++i) trainer.step(i < 2);
    model::Parameter* p = trainer.params().find("layers.1.attention.qkv.weight");
    auto values = p->master.to_host<float>(trainer.compute());
    for (float& v : values) v = 3e38f;
    trainer.params().set_master(trainer.compute(), *p, values);
    try {
      trainer.step();
    } catch (const RunError& e) {
      return e.message();
    }
    return "";
  };
  CHECK_THAT(message(As::steps), Catch::Contains("step 4") && Catch::Contains("matmul_qkv_fwd"));
  CHECK(message(As::steps) == message(As::single));
}

TEST_CASE("a part of a step that cannot be captured runs launch by launch, with a note") {
  const StepRun single = train_steps({}, As::single, true);
  const StepRun no_update = train_steps({}, As::steps, true, false, "adamw");
  CHECK(no_update.update_replays == 0);
  CHECK(no_update.replays >= kSteps - 1);
  CHECK_THAT(no_update.failure, Catch::Contains("an update could not be captured"));
  check_same(single, no_update);
  // Nothing but the begin of a step fills memory: the micro-batches become graphs.
  const StepRun parts = train_steps({}, As::steps, true, false, "fill");
  CHECK(parts.update_replays == 0);
  CHECK(parts.replays >= 4 * (kSteps - 4));
  CHECK_THAT(parts.failure, Catch::Contains("the micro-batches of a step could not be captured") &&
                                !Catch::Contains("a micro-batch could"));
  CHECK_THAT(parts.plan, Catch::StartsWith("on: every micro-batch; not a whole step"));
  check_same(single, parts);
  const StepRun none = train_steps({}, As::steps, true, false, "cross_entropy");
  CHECK(none.update_replays == 0);
  CHECK(none.replays == 0);
  CHECK_THAT(none.failure, Catch::Contains("the micro-batches of a step could not be captured") &&
                               Catch::Contains("a micro-batch could not be captured"));
  check_same(single, none);
}

TEST_CASE("graphs of steps have no second copy of the activations") {
  const Changes large{"model.hidden_size=256", "model.ffn_hidden_size=1024",
                      "train.global_batch_size=128", "train.micro_batch_size=64"};
  const auto reserved = [&](As as) {
    const auto device = recording();
    train::Trainer trainer =
        make_trainer(*device, recipe_of(large, as), std::make_shared<CountingData>());
    for (int i = 0; i < 3; ++i) trainer.step();
    return double(device->allocator().reserved().peak);
  };
  // The pool's segment for each size of buffers may be half used.
  CHECK(reserved(As::steps) <= 1.15 * reserved(As::single));
}

}  // namespace parity_step_graphs_test
