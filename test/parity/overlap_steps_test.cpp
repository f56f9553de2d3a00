// Two steps of each parallelism with all of its overlap: all streams and the threads of all ranks
// work at the same time, and little else runs. This is a program of its own, small enough for
// sanitizers.
#include <catch2/catch.hpp>

#include "test/support/comm_testing.h"
#include "test/support/graph_testing.h"
#include "test/support/train_testing.h"
#include "train/trainer.h"

namespace parity_overlap_steps_test {

using namespace mtrain;
using namespace train_testing;

namespace {

struct Parallelism {
  const char* name;
  int ranks;
  Changes changes;
  std::string backend = "thread";
  double bound = 1e-5;  // for the losses' relative difference
  bool graphs = false;  // micro-batches are captured and replayed
};

const Changes kModel{"model.num_layers=4",       "model.hidden_size=32",
                     "model.num_query_groups=4", "train.global_batch_size=8",
                     "train.micro_batch_size=1", "optimizer.lr=3e-3"};

const Changes kExperts{"model.moe.num_experts=4", "model.moe.ffn_hidden_size=24",
                       "model.moe.load_balancing_type=aux_loss", "model.moe.aux_loss_coeff=0.05"};

const Changes kSequenceParallel{"distributed.tp_size=2", "distributed.sequence_parallel=true",
                                "comm_overlap.tp_comm_overlap=true"};

const Changes kMegatron{"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"},
    kFsdp2{"distributed.strategy=fsdp2"};

Changes pipeline(const std::string& schedule, int stages) {
  return {"distributed.pp_size=2", fmt::format("distributed.vpp_size={}", stages),
          "distributed.pipeline.pp_schedule=" + schedule};
}

std::vector<Parallelism> layouts() {
  return {
      {"ddp", 2, {"distributed.strategy=ddp", "ddp.bucket_size=3000"}},
      {"a sharded optimizer", 2, with(kMegatron, {"ddp.overlap_param_gather=true"})},
      {"sharded parameters", 2, kFsdp2},
      {"sharded parameters in two replicas", 4, with(kFsdp2, {"distributed.dp_replicate_size=2"})},
      {"sharded parameters over shared memory", 2, kFsdp2, "shared_memory"},
      {"a sharded optimizer over gloo", 2, kMegatron, "gloo"},
      {"tensor parallelism in rings", 2,
       with(kSequenceParallel,
            {"comm_overlap.tp_comm_overlap_cfg={qkv_fprop: {method: ring_exchange}, fc1_fprop: "
             "{method: ring_exchange}, proj_fprop: {method: ring_exchange}, fc2_fprop: {method: "
             "ring_exchange}}"})},
      {"tensor parallelism in pipelines", 2,
       with(kSequenceParallel, {"comm_overlap.tp_comm_overlap_cfg={proj_fprop: {num_splits: 2}, "
                                "fc2_fprop: {num_splits: 2}}"})},
      {"sequence parallelism with recomputed modules", 2,
       with(kSequenceParallel,
            {"recompute.granularity=selective", "recompute.modules=[core_attn,mlp]"})},
      {"tensor parallelism in graphs", 2, kSequenceParallel, "thread", 1e-5, /*graphs=*/true},
      {"a ring of keys", 2, {"distributed.cp_size=2", "distributed.cp_comm_type=p2p"}},
      {"rings of keys between ranks that share heads",
       4,
       {"distributed.cp_size=4", "distributed.cp_comm_type=a2a+p2p",
        "distributed.hierarchical_context_parallel_sizes=[2,2]"}},
      {"1F1B", 2, pipeline("interleaved_1f1b", 2)},
      {"1F1B with messages in bf16", 2,
       with(pipeline("interleaved_1f1b", 2), {"distributed.pipeline.dtype=bf16"}), "thread", 1e-3},
      {"fine-grained 1F1B", 2,
       with(pipeline("interleaved_1f1b", 2),
            {"comm_overlap.overlap_p2p_backward_on_comm_stream=true",
             "comm_overlap.delay_wgrad_compute=true"})},
      {"fine-grained 1F1B in order with compute", 2,
       with(pipeline("interleaved_1f1b", 2), {"comm_overlap.fine_grained_1f1b=true"})},
      {"messages one by one", 2,
       with(pipeline("interleaved_1f1b", 2),
            {"comm_overlap.overlap_p2p_comm=false", "comm_overlap.batch_p2p_comm=false"})},
      {"forwards beside backwards", 2, pipeline("dualpipev", 2)},
      {"a zero-bubble pipeline of sharded parameters", 4,
       with(pipeline("zero_bubble", 2), kFsdp2)}};
}

const Changes kPairs{"comm_overlap.overlap_moe_expert_parallel_comm=true",
                     "comm_overlap.delay_wgrad_compute=true"};

std::vector<Parallelism> layouts_of_experts() {
  const Changes pairs = with(pipeline("interleaved_1f1b", 2),
                             {"comm_overlap.overlap_p2p_backward_on_comm_stream=true",
                              "comm_overlap.delay_wgrad_compute=true"});
  return {
      {"experts and a sharded optimizer", 2, kMegatron},
      {"experts and sharded parameters", 4, kFsdp2},
      {"experts over shared memory", 2, kFsdp2, "shared_memory"},
      {"experts over gloo", 2, kMegatron, "gloo"},
      {"tokens that are gathered for experts", 2,
       with(kMegatron, {"model.moe.token_dispatcher=all_gather"})},
      {"tokens that travel once to each rank", 2,
       with(kMegatron, {"model.moe.token_dispatcher=flex"})},
      {"rows up to a capacity", 2,
       with(kMegatron,
            {"model.moe.expert_capacity_factor=4", "model.moe.pad_expert_input_to_capacity=true"})},
      {"experts in chunks", 2, with(kMegatron, {"comm_overlap.moe_dispatch_chunks=2"})},
      {"experts in chunks under sequence parallelism over gloo", 4,
       with(kFsdp2, with(kSequenceParallel, {"comm_overlap.moe_dispatch_chunks=2"})), "gloo"},
      {"experts that tensor parallelism divides", 4, with(kMegatron, {"distributed.tp_size=2"})},
      {"experts under sequence parallelism", 4, with(kFsdp2, kSequenceParallel)},
      {"experts under sequence parallelism over gloo", 4, with(kMegatron, kSequenceParallel),
       "gloo"},
      {"whole experts under sequence parallelism", 2,
       with(kSequenceParallel, {"distributed.expert_tp_size=1"})},
      {"experts in the fine-grained 1F1B", 4, with(kMegatron, pairs)},
      {"rows that travel while another micro-batch computes", 2, with(kMegatron, kPairs)},
      {"rows that travel beside sharded parameters over gloo", 2, with(kFsdp2, kPairs), "gloo"},
      {"rows that travel in a pipeline while another micro-batch computes", 4,
       with(with(kFsdp2, kPairs), pairs)}};
}

std::vector<double> losses_of(const Recipe& r, Device& device, comm::World world) {
  train::Trainer trainer =
      make_trainer(device, r, std::make_shared<CountingData>(), std::move(world));
  std::vector<double> losses;
  // The second step begins before the result of the first one is read.
  for (int step = 0; step < 2; ++step) losses.push_back(trainer.step(step == 0).loss);
  if (trainer.graphs()) CHECK(trainer.graphs()->replays() > 0);
  return losses;
}

std::vector<double> losses_alone(const Changes& model) {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  return losses_of(tiny(model), *device, comm::World::alone());
}

void expect_same_losses(const Changes& model, const Parallelism& layout,
                        const std::vector<double>& reference) {
  CAPTURE(layout.name);
  Recipe recipe = tiny(with(model, layout.changes), layout.ranks);
  TestRanksOptions options;
  if (layout.graphs) {
    recipe.train.device = recipe::DeviceChoice::cuda;
    recipe.train.enable_cuda_graph = true;
    options.device = [] {
      return Device::on(std::make_unique<RecordingBackend>(), {.stream_sanitizer = true});
    };
  }
  std::vector<std::vector<double>> losses(size_t(layout.ranks));
  run_ranks(
      layout.ranks, layout.backend,
      [&](TestRank& rank) {
        losses[size_t(rank.rank())] = losses_of(recipe, rank.device, rank.world);
      },
      options);
  for (const auto& of_rank : losses) check_close(reference, of_rank, layout.bound);
}

}  // namespace

TEST_CASE("layouts with all their overlap train as a single rank does, step by step") {
  const std::vector<double> alone = losses_alone(kModel);
  for (const Parallelism& layout : layouts()) expect_same_losses(kModel, layout, alone);
}

TEST_CASE("experts over ranks train as a single rank does, step by step") {
  const Changes model = with(kModel, kExperts);
  const std::vector<double> alone = losses_alone(model);
  for (const Parallelism& layout : layouts_of_experts())
    expect_same_losses(with(model, {"distributed.ep_size=2"}), layout, alone);
}

TEST_CASE("weights that are gathered in 8 bits train as on a single rank, step by step") {
  const Changes model = with(kModel, {"mixed_precision.name=bf16_mixed",
                                      "mixed_precision.fp8=hybrid", "debug.emulate_fp8=true"});
  const Changes gather{"mixed_precision.fp8_param_gather=true"};
  const std::vector<double> alone = losses_alone(model);
  for (const Changes& strategy : {kMegatron, kFsdp2})
    expect_same_losses(
        model, {"weights in 8 bits", 2, with(strategy, gather), "thread", /*bound=*/1e-2}, alone);
}

}  // namespace parity_overlap_steps_test
