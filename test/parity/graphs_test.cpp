// Tests that micro-batches as graphs give the same bits as single launches. Runs on a CPU backend
// that captures graphs, under the stream sanitizer.
#include <catch2/catch.hpp>

#include "test/support/graph_testing.h"
#include "train_experts_testing.h"
#include "train_fp8_testing.h"

namespace parity_graphs_test {

using namespace mtrain;
using namespace train_testing;

namespace {

struct GraphRun {
  Result result;
  std::vector<std::vector<double>> experts;  // the statistics of each step
  double last_scale = 1;                     // of the loss
  int64_t replays = 0, reserved = 0;
  std::string plan;
  std::vector<std::string> failures;
};

// The end of every third sample is padding.
class PaddedData : public CountingData {
 public:
  void sample(int64_t index, data::Sample& out) const override {
    CountingData::sample(index, out);
    if (index % 3 != 0) return;
    out.padding = 5;
    std::fill(out.label.end() - out.padding, out.label.end(), -1);
  }
};

std::unique_ptr<Device> recording(const std::string& refused = "") {
  return Device::on(std::make_unique<RecordingBackend>(refused), {.stream_sanitizer = true});
}

// A recipe for a GPU, on a CPU backend that captures graphs.
Recipe recipe_of(const Changes& changes, bool graphs, int64_t world = 1) {
  Recipe r = tiny(changes, world);
  r.train.device = recipe::DeviceChoice::cuda;
  r.train.enable_cuda_graph = graphs;
  return r;
}

// Graphs are held for the first `held` steps.
GraphRun train_graphs(
    const Recipe& r, Device& device, comm::World world, int64_t steps = 20, int64_t held = 0,
    const std::shared_ptr<const data::Dataset>& data = std::make_shared<CountingData>()) {
  train::Trainer trainer = make_trainer(device, r, data, std::move(world));
  const data::ValidationLoader validation(data, 13,
                                          {.micro_batch = 2,
                                           .dp_rank = trainer.data_parallel().rank(),
                                           .dp_size = trainer.data_parallel().size()});
  GraphRun run;
  for (int64_t i = 0; i < steps; ++i) {
    if (trainer.graphs()) trainer.graphs()->hold(i < held);
    const train::StepStats s = trainer.step();
    run.result.losses.push_back(s.loss);
    run.result.norms.push_back(s.grad_norm);
    run.last_scale = s.loss_scale;
    if (s.experts)
      run.experts.push_back({s.experts->balance_loss, s.experts->z_loss, s.experts->load_max,
                             s.experts->load_variation, double(s.experts->dead),
                             s.experts->dropped});
    if (i == steps / 2) run.result.evaluation = trainer.evaluate(validation);
    if (!trainer.graphs()) continue;
    const std::string failure = trainer.graphs()->take_failure();
    if (!failure.empty()) run.failures.push_back(failure);
  }
  run.result.weights = full_weights(trainer);
  run.reserved = device.allocator().reserved().peak;
  if (trainer.graphs()) {
    run.replays = trainer.graphs()->replays();
    run.plan = print_cuda_graphs(trainer.graphs()->plan());
  }
  return run;
}

GraphRun train_graphs(const Changes& changes, bool graphs, const std::string& refused = "") {
  const Recipe r = recipe_of(changes, graphs);
  const auto device = recording(refused);
  return train_graphs(r, *device, comm::World::alone());
}

void check_same(const Result& a, const Result& b) {
  CHECK((a.losses == b.losses));
  CHECK((a.norms == b.norms));
  CHECK((a.weights == b.weights));
  CHECK(a.evaluation == b.evaluation);
}

const Changes kAccumulate{"train.global_batch_size=8", "train.micro_batch_size=2"};

}  // namespace

TEST_CASE("graphs give the bits of single launches, with dropout, masks and recomputation") {
  const std::vector<Changes> models{
      {},
      {"model.hidden_dropout=0.2", "model.embedding_dropout=0.1"},
      {"model.architecture=gpt2", "model.num_query_groups=4", "model.hidden_dropout=0.1",
       "recompute.granularity=full"},
      {"model.share_embeddings_and_output_weights=true", "mixed_precision.name=bf16_mixed",
       "recompute.granularity=selective"}};
  for (const Changes& model : models) {
    CAPTURE(model);
    const Changes all = with(kAccumulate, model);
    const GraphRun off = train_graphs(all, false), on = train_graphs(all, true);
    CHECK(off.replays == 0);
    // 20 steps have 80 micro-batches. Two of them run as single launches before their capture: a
    // first of a step, which overwrites gradients, and one that adds to them.
    CHECK(on.replays == 80 - 2);
    CHECK(on.plan == "on: every micro-batch");
    check_same(off.result, on.result);
    CHECK(on.result.losses.back() < 0.9 * on.result.losses.front());
    const auto plain = Device::cpu(1, {.stream_sanitizer = true});
    check_same(off.result,
               train_graphs(recipe_of(all, false), *plain, comm::World::alone()).result);
  }
}

TEST_CASE("graphs give the bits of single launches for experts of one rank") {
  const Changes kEightBits{"model.moe.ffn_hidden_size=48"};
  struct Case {
    const char* name;
    Changes changes;
    int64_t single;  // of 80 micro-batches, those that run as single launches
  };
  const std::vector<Case> cases{
      {"losses of the batch", kPlain, 2},
      {"losses of samples, a shared expert", kShared, 2},
      // The first step has no loads of a step before it: its micro-batches are of another kind.
      {"loads of the step before, biases, drops", kBalanced, 4},
      {"drops, padded", with(kBalanced, kPadded), 4},
      {"recomputation", with(kShared, kFull), 2},
      {"recomputation without routers", with(kPlain, with(kFull, kKeepRouters)), 2},
      {"recomputed experts",
       with(kPlain, {"recompute.granularity=selective", "recompute.modules=[moe, moe_act]"}), 2},
      {"given choices", with(kPlain, {"debug.route=balanced"}), 2},
      {"bf16, dropout",
       with(kBalanced, {"mixed_precision.name=bf16_mixed", "model.hidden_dropout=0.1"}), 4},
      {"8 bits", with(kPlain, with(kTensorwise, kEightBits)), 2},
      {"8 bits, scales of earlier steps", with(kPlain, with(kDelayed, kEightBits)), -1},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const Changes all = with(c.changes, kAccumulate);
    const GraphRun off = train_graphs(all, false), on = train_graphs(all, true);
    CHECK(off.replays == 0);
    CHECK(on.failures.empty());
    CHECK(on.plan == "on: every micro-batch");
    if (c.single >= 0) CHECK(on.replays == 80 - c.single);
    CHECK(on.replays >= 40);
    check_same(off.result, on.result);
    CHECK((off.experts == on.experts));
  }
}

TEST_CASE("graphs of experts follow the loss scale of fp16, and tokens of padding") {
  const Changes all = with(kBalanced, with(kAccumulate, {"mixed_precision.name=fp16_mixed",
                                                         "mixed_precision.initial_loss_scale=64",
                                                         "mixed_precision.loss_scale_window=3"}));
  const auto data = std::make_shared<PaddedData>();
  const auto run = [&](bool graphs) {
    const auto device = recording();
    return train_graphs(recipe_of(all, graphs), *device, comm::World::alone(), 20, 0, data);
  };
  const GraphRun off = run(false), on = run(true);
  CHECK(on.failures.empty());
  CHECK(on.replays >= 60);
  CHECK(on.last_scale > 64);
  check_same(off.result, on.result);
  CHECK((off.experts == on.experts));
}

TEST_CASE("graphs have no second copy of the activations") {
  const Changes large{"model.hidden_size=256", "model.ffn_hidden_size=1024",
                      "train.global_batch_size=128", "train.micro_batch_size=64"};
  const auto reserved = [&](bool graphs) {
    const Recipe r = recipe_of(large, graphs);
    const auto device = recording();
    const GraphRun run = train_graphs(r, *device, comm::World::alone(), 3);
    CHECK(run.replays == (graphs ? 4 : 0));
    return double(run.reserved);
  };
  // The pool's segment for each size of buffers may be half used.
  CHECK(reserved(true) <= 1.15 * reserved(false));
}

TEST_CASE("a single micro-batch a step is a graph from the second step on") {
  const Changes whole{"train.global_batch_size=6", "train.micro_batch_size=6"};
  const GraphRun off = train_graphs(whole, false), on = train_graphs(whole, true);
  CHECK(on.replays == 19);
  check_same(off.result, on.result);
}

TEST_CASE("graphs that are held are captured after a run without them, once they are let go") {
  const GraphRun off = train_graphs(kAccumulate, false);
  const auto device = recording();
  const GraphRun on =
      train_graphs(recipe_of(kAccumulate, true), *device, comm::World::alone(), 20, 3);
  CHECK(on.replays == 4 * (20 - 3) - 2);  // 4 micro-batches a step
  check_same(off.result, on.result);
}

TEST_CASE("trainings that cannot be captured run launch by launch, with a single note") {
  const GraphRun off = train_graphs(kAccumulate, false);
  for (const char* refused : {"embedding_fwd", "cross_entropy", "matmul_output_wgrad"}) {
    const GraphRun on = train_graphs(kAccumulate, true, refused);
    INFO(refused << ": " << on.plan);
    CHECK(on.replays == 0);
    REQUIRE(on.failures.size() == 1);
    CHECK_THAT(on.failures[0], Catch::Contains("could not be captured") &&
                                   Catch::Contains("not permitted while a stream is capturing"));
    CHECK(on.plan == "off: " + on.failures[0]);
    check_same(off.result, on.result);
  }
}

TEST_CASE("a value that is not finite within a graph is found launch by launch") {
  const Recipe r = recipe_of(kAccumulate, true);
  const auto device = recording();
  train::Trainer trainer = make_trainer(*device, r, std::make_shared<CountingData>());
  for (int i = 0; i < 3; ++i) trainer.step();
  REQUIRE(trainer.graphs()->replays() == 12 - 2);
  model::Parameter* p = trainer.params().find("layers.1.attention.qkv.weight");
  auto values = p->master.to_host<float>(trainer.compute());
  for (float& v : values) v = 3e38f;
  trainer.params().set_master(trainer.compute(), *p, values);
  CHECK_THROWS_WITH(trainer.step(), Catch::Contains("step 4") &&
                                        Catch::Contains("matmul_qkv_fwd") &&
                                        Catch::Contains("layers.1.attention"));
  CHECK(trainer.graphs()->replays() == 16 - 2);
}

TEST_CASE("a device without graphs trains without") {
  const Recipe r = recipe_of(kAccumulate, true);
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  const GraphRun on = train_graphs(r, *device, comm::World::alone());
  CHECK_THAT(on.plan, Catch::Contains("records no graphs"));
  check_same(train_graphs(kAccumulate, false).result, on.result);
}

TEST_CASE("data-parallel ranks capture the micro-batches that do not communicate") {
  struct Case {
    const char* name;
    Changes changes;
    int64_t replays;  // in 20 steps of 4 micro-batches
  };
  const std::vector<Case> cases{
      // Micro-batches 1 to 3: the last one's gradients are reduced during its backward.
      {"ddp", {"distributed.strategy=ddp", "ddp.bucket_size=3000"}, 60 - 2},
      // 2 and 3: the first waits for parameters.
      {"megatron_ddp", {"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"}, 40 - 1},
      {"megatron_ddp without overlap",
       {"distributed.strategy=megatron_ddp", "ddp.overlap_grad_reduce=false",
        "ddp.overlap_param_gather=false"},
       80 - 2},
      {"megatron_fsdp 1",
       {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=1"},
       40 - 1}};
  const Changes batch{"train.global_batch_size=16", "train.micro_batch_size=2",
                      "model.hidden_dropout=0.1"};
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const auto all_ranks = [&](bool graphs) {
      const Recipe r = recipe_of(with(batch, c.changes), graphs, 2);
      std::vector<GraphRun> runs(2);
      run_ranks(2, "thread",
                [&](TestRank& rank) {
                  runs[size_t(rank.rank())] = train_graphs(r, rank.device, rank.world);
                },
                {.device = [] { return recording(); }});
      return runs;
    };
    const auto off = all_ranks(false), on = all_ranks(true);
    for (size_t rank = 0; rank < 2; ++rank) {
      CHECK(on[rank].failures.empty());
      CHECK(on[rank].replays == c.replays);
      check_same(off[rank].result, on[rank].result);
    }
  }
}

TEST_CASE("graphs give the bits of single launches for ranks that communicate in a micro-batch") {
  struct Case {
    const char* name;
    int ranks;
    Changes changes;
    int64_t replays = 80 - 2;  // in 20 steps of 4 micro-batches
    Changes batch = {};
    std::shared_ptr<const data::Dataset> data = std::make_shared<CountingData>();
  };
  const Changes kHeads{"model.num_query_groups=4", "model.hidden_dropout=0.1"},
      kOverlap{"distributed.tp_size=2", "distributed.sequence_parallel=true",
               "comm_overlap.tp_comm_overlap=true"},
      kAfterwards{"distributed.strategy=megatron_ddp", "ddp.overlap_grad_reduce=false",
                  "ddp.overlap_param_gather=false"};
  const auto cp = [&](int ranks, const char* kind) {
    return with(kAfterwards, {fmt::format("distributed.cp_size={}", ranks),
                              fmt::format("distributed.cp_comm_type={}", kind)});
  };
  const std::vector<Case> cases{
      {"tp", 2, with(kHeads, {"distributed.tp_size=2"})},
      {"sequence parallelism, in bulk and in pipelines", 2, with(kHeads, kOverlap)},
      {"sequence parallelism, in rings", 2,
       with(kOverlap,
            {"comm_overlap.tp_comm_overlap_cfg={qkv_fprop: {method: ring_exchange}, fc1_fprop: "
             "{method: ring_exchange}, proj_fprop: {method: ring_exchange}, fc2_fprop: {method: "
             "ring_exchange}}"})},
      {"recomputed modules", 2,
       with(kOverlap, {"recompute.granularity=selective", "recompute.modules=[core_attn,mlp]"})},
      {"tp in 8 bits", 2, with(kDelayed, {"distributed.tp_size=2"}), -1},
      // The first of 4 micro-batches gathers parameters, and the last one reduces gradients.
      {"tp and dp",
       4,
       with(kMegatron, {"distributed.tp_size=2", "ddp.overlap_param_gather=true"}),
       40 - 1,
       {"train.micro_batch_size=1"}},
      {"experts that tp divides", 2, with(kPlain, {"distributed.tp_size=2"})},
      {"experts under sequence parallelism", 2, with(kBalanced, with(tp(2), kSequence)), 80 - 4},
      {"a ring of keys", 2, cp(2, "p2p")},
      {"gathered keys", 2, cp(2, "all_gather")},
      {"heads that change ranks", 2, with(kHeads, cp(2, "a2a"))},
      {"experts under cp", 2, with(kShared, cp(2, "p2p"))},
      // Only one of the two ranks has a sample's padding: a rank may launch what the other
      // replays.
      {"padding under cp", 2, with(kShared, cp(2, "p2p")), -1, {}, std::make_shared<PaddedData>()},
      {"tp and cp", 4, with(cp(2, "p2p"), kOverlap)}};
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const Changes all = with(with(c.changes, kAccumulate), c.batch);
    const auto all_ranks = [&](bool graphs) {
      const Recipe r = recipe_of(all, graphs, c.ranks);
      std::vector<GraphRun> runs(size_t(c.ranks));
      run_ranks(c.ranks, "thread",
                [&](TestRank& rank) {
                  runs[size_t(rank.rank())] =
                      train_graphs(r, rank.device, rank.world, 20, 0, c.data);
                },
                {.device = [] { return recording(); }});
      return runs;
    };
    const auto off = all_ranks(false), on = all_ranks(true);
    for (size_t rank = 0; rank < size_t(c.ranks); ++rank) {
      CAPTURE(on[rank].plan);
      CHECK(on[rank].failures.empty());
      if (c.replays >= 0) CHECK(on[rank].replays == c.replays);
      CHECK(on[rank].replays >= 39);
      check_same(off[rank].result, on[rank].result);
      CHECK((off[rank].experts == on[rank].experts));
    }
  }
}

TEST_CASE("graphs give the bits of single launches where micro-batches gather parameters") {
  struct Case {
    const char* name;
    int ranks;
    Changes changes = {};
    int64_t samples = 2;  // ranks that read different samples
    // In 20 steps of 5 micro-batches, without the first and the last. Where units begin at other
    // places in memory than before, a micro-batch runs without a graph first.
    int64_t replays = 60 - 2;
  };
  const std::vector<Case> cases{
      {"fsdp2", 2},
      {"values that stay until backward", 2, {"distributed.reshard_after_forward=false"}},
      {"nothing is gathered ahead",
       2,
       {"distributed.fsdp2_forward_prefetch_depth=0",
        "distributed.fsdp2_backward_prefetch_depth=0"},
       2,
       60 - 1},
      {"much is gathered ahead",
       2,
       {"distributed.fsdp2_forward_prefetch_depth=3", "distributed.fsdp2_backward_prefetch_depth=3",
        "model.num_layers=5"},
       2,
       60 - 4},
      {"weights in 8 bits",
       2,
       {"debug.emulate_fp8=true",
        "mixed_precision={name: bf16_mixed, fp8: hybrid, fp8_param_gather: true}"}},
      {"replicas, bf16",
       4,
       {"distributed.dp_replicate_size=2", "mixed_precision.name=bf16_mixed"},
       4},
      {"recomputed layers", 2, {"recompute.granularity=full", "model.hidden_dropout=0.1"}},
      {"tp", 4, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
      {"cp", 4, {"distributed.cp_size=2"}},
      {"experts", 2, kShared, 2, 40 - 3}};  // 4 micro-batches
  const auto all_ranks = [&](const Case& c, bool graphs) {
    const Recipe r = recipe_of(with({"distributed.strategy=fsdp2", "train.micro_batch_size=2",
                                     fmt::format("train.global_batch_size={}", 10 * c.samples)},
                                    c.changes),
                               graphs, c.ranks);
    std::vector<GraphRun> runs(size_t(c.ranks));
    run_ranks(c.ranks, "thread",
              [&](TestRank& rank) {
                runs[size_t(rank.rank())] = train_graphs(r, rank.device, rank.world);
              },
              {.device = [] { return recording(); }});
    return runs;
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const auto off = all_ranks(c, false), on = all_ranks(c, true);
    for (size_t rank = 0; rank < size_t(c.ranks); ++rank) {
      CAPTURE(on[rank].plan);
      CHECK(on[rank].failures.empty());
      CHECK(on[rank].replays == c.replays);
      check_same(off[rank].result, on[rank].result);
    }
  }
}

TEST_CASE("the state of the hooks that gather parameters can be saved and set") {
  const Recipe r = recipe_of({"distributed.strategy=fsdp2", "model.num_layers=6",
                              "train.global_batch_size=4", "train.micro_batch_size=1"},
                             false, 2);
  std::vector<double> losses[2];
  for (const bool sets : {false, true})
    run_ranks(2, "thread", [&](TestRank& rank) {
      train::Trainer trainer =
          make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      Stream& compute = rank.device.stream(device::StreamKind::compute);
      model::DataParallel& hooks = trainer.data_parallel();
      (void)trainer.step();
      std::vector<model::ParamUnit*> layers;
      for (model::ParamUnit* unit : trainer.params().units())
        if (unit->id.kind == model::UnitKind::layer) layers.push_back(unit);
      const auto places = [&] {
        std::vector<const void*> all;
        for (const model::ParamUnit* unit : layers) all.push_back(unit->value.data());
        return all;
      };
      const model::HookState start = hooks.hook_state();
      const auto at_start = places();
      for (size_t i = 0; i < 4; ++i) {
        hooks.before_forward(*layers[i]);
        hooks.after_forward(*layers[i]);
      }
      const model::HookState end = hooks.hook_state();
      const auto at_end = places();
      std::vector<bool> holds{start.key != end.key, at_start != at_end};
      if (sets) {
        hooks.set_hook_state(start, {});
        holds.push_back(hooks.hook_state().key == start.key && places() == at_start);
        // As after a replay, which has gathered the values of the end.
        hooks.set_hook_state(end, compute.record());
        holds.push_back(hooks.hook_state().key == end.key && places() == at_end);
      }
      const double loss = trainer.step().loss;
      if (rank.rank() != 0) return;  // one thread alone may report to the test
      CHECK(holds == std::vector<bool>(sets ? 4 : 2, true));
      losses[sets].push_back(loss);
    });
  CHECK(losses[0] == losses[1]);
}

TEST_CASE("a replay that waits for a rank that has failed names the call and the reason") {
  const Recipe r = recipe_of(with(kAccumulate, {"distributed.tp_size=2"}), true, 2);
  std::string message;
  const auto train = [&](TestRank& rank) {
    train::Trainer trainer =
        make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    for (int i = 0; i < 3; ++i) trainer.step();
    REQUIRE(trainer.graphs()->replays() > 0);
    if (rank.rank() == 1) throw RunError("this rank gives up");
    try {
      for (int i = 0; i < 3; ++i) trainer.step();
    } catch (const Error& e) {
      message = e.message();
      throw;
    }
  };
  CHECK_THROWS(run_ranks(2, "thread", train, {.device = [] { return recording(); }}));
  CHECK_THAT(message, Catch::Contains("rank 1 of the group gave up") &&
                          Catch::Contains("of group tp") && Catch::Contains("in `micro_batch`"));
}

}  // namespace parity_graphs_test
