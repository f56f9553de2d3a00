// Tests that 8-bit copies of weights are made as often as planned, and have the bits of a weight
// that is quantized for each use.
#include <map>
#include <set>
#include <utility>

#include "run/run_checkpoint.h"
#include "test/support/graph_testing.h"
#include "test/support/temporary_folder.h"
#include "train_fp8_testing.h"

namespace parity_fp8_weights_test {

using namespace mtrain;
using namespace train_testing;

namespace {

// Makes the trainer keep no 8-bit weights: they are out of date after every launch.
void keep_nothing(Device& device, train::Trainer& trainer) {
  device.set_launch_check(
      [&](Stream&, const device::LaunchInfo&) { trainer.quantizer()->weights_changed(); });
}

const Changes kAccumulate{"train.micro_batch_size=2"}, kAtOnce{"train.micro_batch_size=6"};
// GEMMs that read the weight once for each chunk of their rows.
const Changes kChunks{"distributed.strategy=megatron_ddp", "distributed.tp_size=2",
                      "distributed.sequence_parallel=true", "comm_overlap.tp_comm_overlap=true",
                      "comm_overlap.tp_comm_overlap_cfg={qkv_fprop: {method: ring_exchange}, "
                      "fc1_fprop: {method: ring_exchange}, proj_fprop: {method: pipeline}, "
                      "fc2_fprop: {method: pipeline}, proj_dgrad: {method: ring_exchange}, "
                      "fc2_dgrad: {method: ring_exchange}}"};
const Changes kFull{"recompute.granularity=full", "recompute.method=uniform",
                    "recompute.num_layers=1"};

struct Outcome {
  std::vector<double> losses, evaluations;
  std::vector<float> norms, weights;
  std::string scales;
  int64_t replays = 0;  // replays of graphs
  bool operator==(const Outcome&) const = default;
};

Outcome outcome(Device& device, const Recipe& r, comm::World world, bool keep, int64_t steps = 5) {
  const auto data = std::make_shared<CountingData>();
  train::Trainer t = make_trainer(device, r, data, std::move(world));
  if (!keep) keep_nothing(device, t);
  const data::ValidationLoader validation(
      data, 13,
      {.micro_batch = 2, .dp_rank = t.data_parallel().rank(), .dp_size = t.data_parallel().size()});
  Outcome o;
  for (int64_t i = 0; i < steps; ++i) {
    if (i % 2 == 0) o.evaluations.push_back(t.evaluate(validation));  // before the first step, too
    const train::StepStats s = t.step();
    o.losses.push_back(s.loss);
    o.norms.push_back(s.grad_norm);
  }
  o.weights = full_weights(t);
  o.scales = t.quantizer()->state(t.compute());
  device.set_launch_check({});
  if (t.graphs()) o.replays = t.graphs()->replays();
  return o;
}

std::vector<Outcome> outcomes(const Changes& changes, int ranks, bool keep) {
  const Recipe r = tiny(changes, ranks);
  std::vector<Outcome> all(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    all[size_t(rank.rank())] = outcome(rank.device, r, rank.world, keep);
  });
  return all;
}

// How often each weight is read to be quantized, and to find its scale. Gathered weights share
// their memory with others, so their counts are wrong.
struct Counts {
  std::map<std::string, int> quantized, measured;  // by parameter
  // Returns the count, if it is the same for all four linears of both layers, or else -1.
  static int of_all(const std::map<std::string, int>& counts) {
    std::set<int> different;
    for (const auto& [name, n] : counts) different.insert(n);
    return counts.empty()                                ? 0
           : counts.size() == 8 && different.size() == 1 ? *different.begin()
                                                         : -1;
  }
};
template <class F>
Counts count(train::Trainer& t, const F& work) {
  Counts counts;
  t.device().set_launch_check([&](Stream&, const device::LaunchInfo& info) {
    const bool quantize = info.name == std::string("quantize");
    if (!quantize && info.name != std::string("amax")) return;
    for (const model::Parameter* p : t.params().params())
      if (p->value && p->value.data() == info.reads.at(0).data)
        ++(quantize ? counts.quantized : counts.measured)[p->name];
  });
  work();
  t.device().set_launch_check({});
  return counts;
}
// {quantized, measured}, the same for every weight.
using Times = std::pair<int, int>;
Times times(const Counts& c) { return {Counts::of_all(c.quantized), Counts::of_all(c.measured)}; }

}  // namespace

TEST_CASE("kept 8-bit weights change no bit of one rank's training") {
  for (const Changes& precision : {kTensorwise, kDelayed})
    for (const Changes& more :
         {kAccumulate, with(kAtOnce, kFull), with(kAccumulate, kFull),
          with(kAccumulate,
               {"recompute.granularity=full", "recompute.method=block", "recompute.num_layers=1"}),
          with(kAccumulate, {"mixed_precision.fp8=e4m3"}), kAtOnce}) {
      CAPTURE(precision, more);
      const Recipe r = tiny(with(precision, more));
      const auto device = Device::cpu(1, {.stream_sanitizer = true});
      const Outcome with_copies = outcome(*device, r, comm::World::alone(), true),
                    without = outcome(*device, r, comm::World::alone(), false);
      CHECK(with_copies.losses == without.losses);
      CHECK(with_copies.evaluations == without.evaluations);
      CHECK((with_copies == without));
    }
}

TEST_CASE("kept 8-bit weights change no bit under any layout") {
  const std::vector<Changes> layouts{
      {"distributed.strategy=ddp", "train.micro_batch_size=1"},
      {"distributed.strategy=megatron_ddp", "train.micro_batch_size=1"},
      {"distributed.strategy=fsdp2", "train.micro_batch_size=1"},
      {"distributed.strategy=fsdp2", "distributed.tp_size=2", "distributed.sequence_parallel=true",
       "comm_overlap.tp_comm_overlap=true"},
      kChunks,
      {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "distributed.pipeline={}",
       "train.micro_batch_size=2"},
      {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "model.num_layers=4",
       "distributed.pipeline.pp_schedule=interleaved_1f1b", "distributed.vpp_size=2",
       "train.micro_batch_size=3"}};
  for (const Changes& precision : {kTensorwise, kDelayed})
    for (const Changes& layout : layouts) {
      CAPTURE(precision, layout);
      CHECK((outcomes(with(precision, layout), 2, true) ==
             outcomes(with(precision, layout), 2, false)));
    }
}

TEST_CASE("a weight is quantized once a step where it is kept, and measured once in any case") {
  for (const bool delayed : {false, true}) {
    // Scales of earlier steps are not measured.
    const auto expected = [&](int quantized) { return Times{quantized, delayed ? 0 : 1}; };
    const auto steps = [&](const Changes& more, int quantized) {
      CAPTURE(delayed, more);
      Run run(with(delayed ? kDelayed : kTensorwise, more));
      // The first step has current scales.
      CHECK(times(count(run.trainer, [&] { run.losses(1); })) == Times{quantized, 1});
      CHECK(times(count(run.trainer, [&] { run.losses(1); })) == expected(quantized));
      CHECK(times(count(run.trainer, [&] { run.losses(1); })) == expected(quantized));
    };
    steps(kAccumulate, 1);
    steps(with(kAccumulate, kFull), 1);
    steps(kAtOnce, 2);               // forward, backward: no copies
    steps(with(kAtOnce, kFull), 2);  // forward and its recomputation; backward
  }
}

TEST_CASE("evaluation and a checkpoint's weights make their own 8-bit weights") {
  const auto data = std::make_shared<CountingData>();
  const data::ValidationLoader validation(data, 13, {.micro_batch = 2});
  for (const bool delayed : {false, true}) {
    CAPTURE(delayed);
    const TemporaryFolder root;
    const Changes changes = with(delayed ? kDelayed : kTensorwise, kAccumulate);
    Run run(changes), other(changes);
    run.losses(2);
    const auto folder = run::save_run(run.trainer, root.path);
    // Only the forward's copies. Backward's copies, and the entries of the history, come with the
    // step.
    const auto evaluate = [&] { return run.trainer.evaluate(validation); };
    double loss = 0;
    CHECK(times(count(run.trainer, [&] { loss = evaluate(); })) == Times{1, delayed ? 0 : 1});
    CHECK(times(count(run.trainer, [&] { evaluate(); })) == Times{0, 0});
    CHECK(times(count(run.trainer, [&] { run.losses(1); })) == Times{1, 0});
    CHECK(evaluate() != loss);
    // The copies of other weights that the evaluation has just made must be dropped.
    other.losses(1);
    other.trainer.evaluate(validation);
    run::resume_run(other.trainer, folder);
    CHECK(other.trainer.evaluate(validation) == loss);
  }
}

TEST_CASE("GEMMs in chunks share the 8-bit copy of the weight") {
  const Recipe r = tiny(with(kTensorwise, kChunks), 2);
  REQUIRE(plan::layout_of(r, 2).micro_batches == 1);
  run_ranks(2, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    t.step();
    CHECK(times(count(t, [&] { t.step(); })) == Times{1, 1});
  });
}

TEST_CASE(
    "weights gathered for their use are quantized for their use, under a scale that is kept") {
  const Recipe r =
      tiny(with(kTensorwise, {"distributed.strategy=fsdp2", "train.micro_batch_size=1"}), 2);
  run_ranks(2, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    t.step();
    const Counts counts = count(t, [&] { t.step(); });
    CHECK(times(counts) == Times{2 * 3, 1});  // forward and backward of three micro-batches
  });
}

namespace {
std::unique_ptr<Device> recording() {
  return Device::on(std::make_unique<RecordingBackend>(), {.stream_sanitizer = true});
}
}  // namespace

TEST_CASE("graphs use 8-bit weights that were made before them") {
  const auto data = std::make_shared<CountingData>();
  const data::ValidationLoader validation(data, 13, {.micro_batch = 2});
  for (const bool delayed : {false, true})
    for (const Changes& more : {kAccumulate, kAtOnce, with(kAtOnce, kFull)}) {
      CAPTURE(delayed, more);
      const TemporaryFolder root;
      Recipe r = tiny(with(delayed ? kDelayed : kTensorwise, more));
      const auto plain = Device::cpu(1, {.stream_sanitizer = true});
      const Outcome single = outcome(*plain, r, comm::World::alone(), true);
      r.train.device = recipe::DeviceChoice::cuda;  // whose graphs the backend records
      const auto device = recording(), another = recording();
      Outcome graphs = outcome(*device, r, comm::World::alone(), true);
      CHECK(std::exchange(graphs.replays, 0) > 0);
      CHECK((graphs == single));
      // Evaluations come before a capture, and before replays; a checkpoint between them.
      train::Trainer t = make_trainer(*another, r, data);
      std::vector<double> losses;
      std::filesystem::path folder;
      for (int i = 0; i < 5; ++i) {
        t.evaluate(validation);
        losses.push_back(t.step().loss);
        if (i == 2) folder = run::save_run(t, root.path);
      }
      CHECK(losses == single.losses);
      run::resume_run(t, folder);
      for (int i = 3; i < 5; ++i) CHECK(t.step().loss == single.losses[size_t(i)]);
      INFO(t.graphs()->take_failure());
      // All micro-batches are replays except for the first of each kind (one or two kinds), and
      // except for the first step of delayed scaling.
      const int a_step = more == kAccumulate ? 3 : 1, kinds = more == kAccumulate ? 2 : 1;
      CHECK(t.graphs()->replays() == (delayed ? 6 : 7) * a_step - kinds);
    }
}

// The first micro-batch waits for gathered parameters and is not a graph: it makes the copies.
TEST_CASE("graphs beside micro-batches that communicate use their 8-bit weights") {
  struct Case {
    const char* strategy;
    int64_t a_step, kinds;  // graphs in each of the 5 steps; each kind is run before its capture
    Changes more = {};
  };
  const Changes bytes{"mixed_precision.fp8_param_gather=true"};
  for (const Case& c :
       std::vector<Case>{{"ddp", 3, 2},
                         {"megatron_ddp", 2, 1},
                         {"megatron_ddp", 2, 1, bytes},
                         {"megatron_ddp", 3, 2, with(bytes, {"ddp.overlap_param_gather=false"})}})
    for (const bool delayed : {false, true}) {
      CAPTURE(c.strategy, delayed, c.more);
      const auto all_ranks = [&](bool graphs) {
        Recipe r = tiny(with(with(delayed ? kDelayed : kTensorwise,
                                  {std::string("distributed.strategy=") + c.strategy,
                                   "train.global_batch_size=8", "train.micro_batch_size=1"}),
                             c.more),
                        2);
        r.train.device = recipe::DeviceChoice::cuda;
        r.train.enable_cuda_graph = graphs;
        std::vector<Outcome> all(2);
        run_ranks(2, "thread",
                  [&](TestRank& rank) {
                    all[size_t(rank.rank())] = outcome(rank.device, r, rank.world, true);
                  },
                  {.device = [] { return recording(); }});
        return all;
      };
      auto on = all_ranks(true);
      for (Outcome& o : on)
        CHECK(std::exchange(o.replays, 0) == (delayed ? 4 : 5) * c.a_step - c.kinds);
      CHECK((on == all_ranks(false)));
    }
}

}  // namespace parity_fp8_weights_test
