// Tests trainings whose 8-bit linears have scales of blocks, as a CPU emulates them.
#include <algorithm>

#include "run/run_checkpoint.h"
#include "test/support/graph_testing.h"
#include "test/support/temporary_folder.h"
#include "train_fp8_testing.h"

namespace parity_fp8_blocks_test {

using namespace mtrain;
using namespace train_testing;

namespace {

// The bounds of fp8_test.cpp.
constexpr double kLosses = 1e-2, kGradients = 0.15;

// Sizes of two ranks that blocks of 128 numbers divide.
const Changes kSizes{"model.hidden_size=128", "model.ffn_hidden_size=256",
                     "model.num_query_groups=4", "model.kv_channels=64"};
const Changes kBlockwise = with(fp8({"mixed_precision.fp8_recipe=blockwise"}), kSizes),
              kMx = with(fp8({"mixed_precision.fp8_recipe=mxfp8"}), kSizes);
const std::vector<Changes> kBoth{kBlockwise, kMx};

const Changes kAccumulate{"train.micro_batch_size=2"}, kAtOnce{"train.micro_batch_size=6"};
const Changes kFull{"recompute.granularity=full", "recompute.method=uniform",
                    "recompute.num_layers=1"};

struct Outcome {
  std::vector<double> losses;
  std::vector<float> weights;
  bool operator==(const Outcome&) const = default;
};
// `keep`: keep 8-bit weights as the plan says; otherwise they are out of date after every launch.
Outcome outcome(const Recipe& r, Device& device, comm::World world, bool keep) {
  train::Trainer t = make_trainer(device, r, std::make_shared<CountingData>(), std::move(world));
  if (!keep)
    device.set_launch_check(
        [&](Stream&, const device::LaunchInfo&) { t.quantizer()->weights_changed(); });
  Outcome o;
  for (int i = 0; i < 4; ++i) o.losses.push_back(t.step().loss);
  device.set_launch_check({});
  o.weights = full_weights(t);
  return o;
}
std::vector<Outcome> outcomes(const Changes& changes, int ranks, bool keep) {
  const Recipe r = tiny(changes, ranks);
  std::vector<Outcome> all(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    all[size_t(rank.rank())] = outcome(r, rank.device, rank.world, keep);
  });
  return all;
}

}  // namespace

TEST_CASE("30 steps under scales of blocks follow bf16") {
  const Result reference = train_alone(with(kBf16, kSizes), 30),
               tensorwise = train_alone(with(kTensorwise, kSizes), 30);
  CHECK(reference.losses.back() < 0.6 * reference.losses.front());
  std::vector<double> first{reference.losses[0], tensorwise.losses[0]};
  for (const Changes& changes : kBoth) {
    CAPTURE(changes);
    const Result result = train_alone(changes, 30);
    check_close(reference.losses, result.losses, kLosses);
    check_gradients(reference, result, kGradients);
    // Each rounds differently.
    CHECK(std::ranges::count(first, result.losses[0]) == 0);
    first.push_back(result.losses[0]);
    const auto e4m3 = Run(with(changes, {"mixed_precision.fp8=e4m3"})).losses(2);
    CHECK(e4m3[0] == result.losses[0]);
    CHECK(e4m3[1] != result.losses[1]);
  }
}

TEST_CASE("layouts under scales of blocks give the losses of one rank") {
  const std::vector<Changes> layouts{
      {"distributed.strategy=ddp"},
      {"distributed.strategy=fsdp2"},
      {"distributed.strategy=megatron_ddp", "distributed.tp_size=2"},
      {"distributed.strategy=fsdp2", "distributed.tp_size=2", "distributed.sequence_parallel=true",
       "comm_overlap.tp_comm_overlap=true"},
      {"distributed.strategy=fsdp2", "distributed.cp_size=2"},
      {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "distributed.pipeline={}"},
      {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "distributed.vpp_size=1",
       "distributed.pipeline.pp_schedule=zero_bubble"}};
  for (const Changes& scales : kBoth) {
    const Changes base = with(scales, {"train.micro_batch_size=3"});
    const Result one = train_alone(base, 8);
    for (const Changes& layout : layouts) {
      CAPTURE(scales, layout);
      for (const Result& r : train_ranks(2, with(base, layout), 8)) {
        check_close(one.losses, r.losses, kLosses);
        // Stages, and ranks of data parallelism, compute each micro-batch as one rank does.
        if (std::ranges::count(layout, "distributed.tp_size=2") == 0 &&
            std::ranges::count(layout, "distributed.cp_size=2") == 0)
          CHECK(r.losses[0] == Approx(one.losses[0]).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("kept 8-bit weights and their scales of blocks change no bit") {
  const Changes chunks{"distributed.strategy=megatron_ddp", "distributed.tp_size=2",
                       "distributed.sequence_parallel=true", "comm_overlap.tp_comm_overlap=true"};
  for (const Changes& scales : kBoth) {
    for (const Changes& more : {kAccumulate, with(kAtOnce, kFull), with(kAccumulate, kFull)}) {
      CAPTURE(scales, more);
      CHECK((outcomes(with(scales, more), 1, true) == outcomes(with(scales, more), 1, false)));
    }
    CAPTURE(scales);
    CHECK((outcomes(with(scales, chunks), 2, true) == outcomes(with(scales, chunks), 2, false)));
  }
}

TEST_CASE("chunks of tensor parallelism's GEMMs have the plan's multiple of rows") {
  const Recipe r =
      tiny(with(kBlockwise,
                {"train.micro_batch_size=1", "train.global_batch_size=1",
                 "distributed.strategy=megatron_ddp", "distributed.tp_size=2",
                 "distributed.sequence_parallel=true", "comm_overlap.tp_comm_overlap=true",
                 "comm_overlap.tp_comm_overlap_cfg={proj_fprop: {method: pipeline, num_splits: 4}, "
                 "fc1_dgrad: {method: pipeline, num_splits: 4}}",
                 "mixed_precision.first_last_layers_bf16=true",
                 "mixed_precision.num_layers_at_start_in_bf16=1",
                 "mixed_precision.num_layers_at_end_in_bf16=0"}),
           2);
  // A rank has 12 of 24 rows. Four chunks have 3 of them each, and in fours there are three chunks.
  // The first layer multiplies bf16, whose chunks may have any number of rows.
  for (const auto& [multiple, chunks] : {std::pair{1, 4}, {4, 3}}) {
    CAPTURE(multiple);
    for (const char* gemm : {"matmul_proj_fwd", "matmul_fc1_dgrad"}) {
      CAPTURE(gemm);
      int of_8_bits = 0, of_bf16 = 0;  // launches of rank 0
      run_ranks(2, "thread", [&, multiple = multiple](TestRank& rank) {
        RunPlan plan = plan::make_plan(r, 2, kVocab);
        plan.fp8.rows_multiple = multiple;
        train::Trainer t = train::build_trainer(rank.device, std::move(plan),
                                                std::make_shared<CountingData>(), rank.world);
        if (rank.rank() == 0)
          rank.device.set_launch_check([&](Stream&, const device::LaunchInfo& info) {
            if (std::string(info.name) == gemm)
              ++(is_float8(info.reads.at(0).dtype) ? of_8_bits : of_bf16);
          });
        t.step();
        rank.device.set_launch_check({});
      });
      CHECK(of_8_bits == chunks);
      CHECK(of_bf16 == 4);
    }
  }
}

TEST_CASE("recomputation under scales of blocks changes no bit, nor do biases that wait") {
  for (const Changes& scales : kBoth) {
    CAPTURE(scales);
    const auto reference = Run(scales).losses(4);
    CHECK(Run(with(scales, kFull)).losses(4) == reference);
    // With biases, a gradient is quantized again for a weight gradient that waits.
    const Changes biases =
        with(scales, {"model.architecture=gpt2", "model.num_query_groups=4",
                      "distributed.strategy=megatron_ddp", "train.micro_batch_size=3"});
    const auto one = train_alone(biases, 4).losses;
    const Changes waiting = with(biases, {"distributed.pp_size=2", "distributed.vpp_size=1",
                                          "distributed.pipeline.pp_schedule=zero_bubble"});
    for (const Result& r : train_ranks(2, waiting, 4)) check_close(one, r.losses, kLosses);
  }
}

TEST_CASE("graphs replay GEMMs under scales of blocks with the same bits") {
  for (const Changes& scales : kBoth)
    for (const Changes& more : {kAccumulate, kAtOnce}) {
      CAPTURE(scales, more);
      Recipe r = tiny(with(scales, more));
      const auto plain = Device::cpu(1, {.stream_sanitizer = true});
      const Outcome single = outcome(r, *plain, comm::World::alone(), true);
      r.train.device = recipe::DeviceChoice::cuda;  // whose graphs the backend records
      const auto device =
          Device::on(std::make_unique<RecordingBackend>(), {.stream_sanitizer = true});
      train::Trainer t = make_trainer(*device, r, std::make_shared<CountingData>());
      Outcome graphs;
      for (int i = 0; i < 4; ++i) graphs.losses.push_back(t.step().loss);
      graphs.weights = full_weights(t);
      INFO(t.graphs()->take_failure());
      CHECK(t.graphs()->replays() > 0);
      CHECK((graphs == single));
    }
}

TEST_CASE("trainings with scales of blocks resume with the same bits, also from other scales") {
  for (const Changes& scales : kBoth) {
    CAPTURE(scales);
    const TemporaryFolder root;
    Run straight(scales), first(scales), second(scales);
    const auto reference = straight.losses(5);
    first.losses(3);
    const auto folder = run::save_run(first.trainer, root.path);
    second.losses(1);
    run::resume_run(second.trainer, folder);
    CHECK(second.losses(2) == std::vector<double>(reference.begin() + 3, reference.end()));
    Run delayed(with(kDelayed, kSizes)), again(scales);
    delayed.losses(3);
    run::resume_run(again.trainer, run::save_run(delayed.trainer, root.path));
    check_close(delayed.losses(2), again.losses(2), kLosses);
  }
}

}  // namespace parity_fp8_blocks_test
