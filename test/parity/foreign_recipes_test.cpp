// The blocks that the guides of NeMo AutoModel and Megatron-Bridge print, unchanged: each loads and
// can be planned at the world that it is meant for. Then, with its sizes halved until it fits eight
// ranks and one layer per stage, it trains three steps with the losses of a single rank. Blocks
// with experts train, too, unless they ask for something that is refused by name.
#include <algorithm>

#include <fmt/core.h>
#include <catch2/catch.hpp>

#include "base/strings.h"
#include "interchange/model_source.h"
#include "plan/load_recipe.h"
#include "plan/rules/unsupported.h"
#include "plan/run_plan.h"
#include "train_ranks.h"

namespace parity_foreign_recipes_test {

using namespace mtrain;
using namespace train_testing;

namespace {

struct Block {
  std::string name;
  int64_t world;
  std::string yaml = {};   // sections that the guide prints
  Changes overrides = {};  // words of its command line
  bool experts = false;
};

// A model that the blocks fit. The blocks of experts add its experts.
const char* kModel =
    "model: {num_layers: 32, hidden_size: 1024, num_attention_heads: 32, num_query_groups: 8,\n"
    "        ffn_hidden_size: 2816, vocab_size: 512}\n"
    "dataset: {train: x, seq_length: 4096}\n"
    "train: {steps: 10, global_batch_size: 64}\n";

// The words of a command line.
Changes words(const std::string& text) {
  Changes list;
  for (auto& word : split(text, ' '))
    if (!word.empty()) list.push_back(std::move(word));
  return list;
}

const std::vector<Block> kYamlBlocks{
    {.name = "fsdp2, tp 8, interleaved",
     .world = 32,
     .yaml = "distributed: {strategy: fsdp2, tp_size: 8, pp_size: 4, cp_size: 1, ep_size: 1, "
             "pipeline: {pp_schedule: interleaved1f1b, pp_microbatch_size: 1}}\n"},
    {.name = "experts over 8",
     .world = 8,
     .yaml = "distributed: {strategy: fsdp2, ep_size: 8, moe: {reshard_after_forward: false}}\n",
     .experts = true},
    {.name = "the full form",
     .world = 8,
     .yaml = "distributed: {strategy: fsdp2, dp_size: none, dp_replicate_size: none, tp_size: 1, "
             "pp_size: 1, cp_size: 1, ep_size: 1, sequence_parallel: false, "
             "activation_checkpointing: false, defer_fsdp_grad_sync: true, pipeline: "
             "{pp_schedule: 1f1b, pp_microbatch_size: 1}, moe: {reshard_after_forward: false}}\n"},
    {.name = "fsdp2",
     .world = 8,
     .yaml = "distributed: {strategy: fsdp2, tp_size: 1, cp_size: 1}\n"},
    {.name = "sequence parallel",
     .world = 8,
     .yaml = "distributed: {strategy: fsdp2, tp_size: 4, sequence_parallel: true}\n"},
    {.name = "interleaved over a local batch",
     .world = 8,
     .yaml = "distributed: {strategy: fsdp2, pp_size: 2, pipeline: {pp_schedule: "
             "interleaved1f1b, pp_microbatch_size: 4, scale_grads_in_schedule: false}}\n"
             "step_scheduler: {local_batch_size: 16}\n"},
    {.name = "interleaved, consolidated",
     .world = 8,
     .yaml = "distributed: {strategy: fsdp2, pp_size: 2, pipeline: {pp_schedule: "
             "interleaved1f1b, pp_microbatch_size: 4, scale_grads_in_schedule: false}}\n"
             "step_scheduler: {local_batch_size: 16}\n"
             "checkpoint: {model_save_format: safetensors, save_consolidated: true}\n"},
    {.name = "replicas",
     .world = 8,
     .yaml = "distributed: {strategy: fsdp2, dp_replicate_size: 2}\n"},
    {.name = "checkpointing",
     .world = 8,
     .yaml = "distributed: {activation_checkpointing: true}\n"},
    {.name = "deferred", .world = 8, .yaml = "distributed: {defer_fsdp_grad_sync: true}\n"},
    {.name = "cp 2", .world = 8, .yaml = "distributed: {strategy: fsdp2, cp_size: 2}\n"},
    {.name = "cp 4", .world = 8, .yaml = "distributed: {strategy: fsdp2, cp_size: 4}\n"},
    {.name = "cp 8", .world = 8, .yaml = "distributed: {strategy: fsdp2, cp_size: 8}\n"},
    {.name = "packed",
     .world = 8,
     .yaml = "packed_sequence: {packed_sequence_size: 4096}\n"
             "step_scheduler: {local_batch_size: 1}\n"},
    {.name = "packs in a local batch",
     .world = 8,
     .yaml = "packed_sequence: {packed_sequence_size: 4096}\n"
             "step_scheduler: {local_batch_size: 2}\n"},
    {.name = "packs in a local batch, cp 2",
     .world = 8,
     .yaml = "distributed: {strategy: fsdp2, cp_size: 2}\n"
             "packed_sequence: {packed_sequence_size: 4096}\n"
             "step_scheduler: {local_batch_size: 4}\n"},
    {.name = "packs in a local batch, interleaved",
     .world = 8,
     .yaml = "distributed: {strategy: fsdp2, pp_size: 2, pipeline: {pp_schedule: "
             "interleaved1f1b, pp_microbatch_size: 2, scale_grads_in_schedule: false}}\n"
             "packed_sequence: {packed_sequence_size: 4096}\n"
             "step_scheduler: {local_batch_size: 8}\n"},
    {.name = "experts, checkpointing",
     .world = 8,
     .yaml = "distributed: {strategy: fsdp2, ep_size: 8, activation_checkpointing: true}\n",
     .experts = true},
    {.name = "experts, every key",
     .world = 8,
     .yaml = "distributed: {strategy: fsdp2, ep_size: 8, activation_checkpointing: true, moe: "
             "{reshard_after_forward: false, ignore_router_for_ac: false, wrap_outer_model: "
             "true}}\n",
     .experts = true},
    {.name = "experts, sizes of 1",
     .world = 8,
     .yaml = "distributed: {strategy: fsdp2, tp_size: 1, cp_size: 1, pp_size: 1, ep_size: 8, "
             "sequence_parallel: false, activation_checkpointing: true}\n",
     .experts = true},
};

const std::vector<Block> kFlagBlocks{
    {.name = "data-parallel overlap under comm_overlap",
     .world = 8,
     .overrides = words("comm_overlap.overlap_grad_reduce=true "
                        "comm_overlap.overlap_param_gather=true "
                        "comm_overlap.bucket_size=134217728")},
    {.name = "data-parallel overlap, distributed optimizer",
     .world = 8,
     .overrides = words("comm_overlap.overlap_grad_reduce=true "
                        "comm_overlap.overlap_param_gather=true "
                        "comm_overlap.bucket_size=134217728 "
                        "optimizer.use_distributed_optimizer=True")},
    {.name = "hierarchical context",
     .world = 8,
     .overrides = words("model.context_parallel_size=4 model.cp_comm_type=a2a+p2p "
                        "model.hierarchical_context_parallel_sizes=[2,2] "
                        "cfg.dist.use_decentralized_pg=False train.train_iters=2")},
    {.name = "expert overlap",
     .world = 8,
     .overrides = words("comm_overlap.overlap_moe_expert_parallel_comm=true "
                        "comm_overlap.delay_wgrad_compute=true "
                        "model.expert_model_parallel_size=2 model.num_moe_experts=8 "
                        "model.moe_token_dispatcher_type=alltoall"),
     .experts = true},
    {.name = "flags with dashes",
     .world = 8,
     .overrides = words("tp-comm-overlap=true overlap-grad-reduce=true context-parallel-size=4")},
    {.name = "the fine-grained 1F1B's flags",
     .world = 8,
     .overrides = words("model.pipeline_model_parallel_size=4 "
                        "model.virtual_pipeline_model_parallel_size=2 "
                        "overlap-p2p-backward-on-comm-stream=true "
                        "overlap-p2p-wgrad-delayed-layer-number=2 "
                        "overlap-p2p-with-transformer-layer-wgrad=true")},
};

std::vector<Block> blocks() {
  const std::string overlap =
      "model.tensor_model_parallel_size=4 model.sequence_parallel=True "
      "model.pipeline_model_parallel_size=4 model.virtual_pipeline_model_parallel_size=2 "
      "comm_overlap.tp_comm_overlap=True ddp.use_distributed_optimizer=True "
      "ddp.overlap_grad_reduce=True ddp.overlap_param_gather=True";
  std::vector<Block> list = kYamlBlocks;
  list.insert(list.end(), kFlagBlocks.begin(), kFlagBlocks.end());
  for (const int64_t world : {16, 32})
    for (const auto& [name, more] :
         {std::pair{"overlap", ""},
          {"overlap, preset",
           "comm_overlap.tp_comm_overlap_cfg=userbuffers_bf16_h100_h12288_tp4_mbs1_seqlen2048"},
          {"overlap, bf16 gradients", "mixed_precision.grad_reduce_in_fp32=False"},
          {"overlap, no fp8 gathers", "mixed_precision.fp8_param_gather=False"},
          {"overlap, bootstrap", "comm_overlap.tp_comm_bootstrap_backend=nccl"}})
      list.push_back({.name = fmt::format("{}, {} ranks", name, world),
                      .world = world,
                      .overrides = words(overlap + " " + more)});
  return list;
}

Recipe load(const Block& b, Changes more, int64_t world) {
  Changes overrides = b.overrides;
  if (b.experts) overrides.push_back("model.moe.num_experts=8");
  overrides.insert(overrides.end(), more.begin(), more.end());
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(interchange::model_source(), kModel + b.yaml,
                                          "block.yaml", overrides, diagnostics, world);
  INFO(b.name << "\n" << diagnostics.text(recipe::Severity::error));
  REQUIRE_FALSE(diagnostics.has_errors());
  return r;
}

// Returns the changes that make a block's training small: sizes halved until it fits eight ranks,
// and one layer per stage, or as many as its flags ask for.
Changes shrunk(const Recipe& r, int64_t world, int64_t& small) {
  int64_t tp = r.distributed.tp_size, pp = r.distributed.pp_size;
  const int64_t dp = world / (tp * pp * r.distributed.cp_size);
  small = world;
  while (small > 8) {
    (tp > 2 ? tp : pp) /= 2;
    small /= 2;
  }
  const plan::Layout layout = plan::layout_of(r, world);
  const int64_t layers =
      pp * layout.stages_per_rank * r.comm_overlap.overlap_p2p_wgrad_delayed_layer_number;
  const bool local = r.written_as("train.micro_batch_size", "step_scheduler.local_batch_size");
  Changes changes{fmt::format("model.num_layers={}", layers),
                  "model.hidden_size=64",
                  "model.num_attention_heads=8",
                  "model.num_query_groups=4",
                  "model.ffn_hidden_size=96",
                  "~model.vocab_size",
                  "dataset.seq_length=32",
                  "optimizer.lr=1e-2",
                  fmt::format("train.global_batch_size={}", local && pp > 1 ? 16 * dp : 16),
                  "train.steps=3",
                  "train.run_dir=unused"};
  // In the spelling of the block, which decides whether a pipeline needs a section.
  const bool megatron = r.written_in("distributed.pp_size", "model");
  changes.push_back(fmt::format(
      "{}={}", megatron ? "model.tensor_model_parallel_size" : "distributed.tp_size", tp));
  changes.push_back(fmt::format(
      "{}={}", megatron ? "model.pipeline_model_parallel_size" : "distributed.pp_size", pp));
  if (r.packed_sequence.packed_sequence_size > 0)
    changes.push_back("packed_sequence.packed_sequence_size=32");
  return changes;
}

struct Steps {
  std::vector<double> losses;
  double first_norm = 0;  // the gradients' norm in step 1
  bool operator==(const Steps&) const = default;
};

Steps three_steps(const Recipe& r, int ranks, std::shared_ptr<const data::Dataset> data) {
  std::vector<Steps> all(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer trainer = make_trainer(rank.device, r, data, rank.world);
    Steps& own = all[size_t(rank.rank())];
    for (int step = 0; step < 3; ++step) {
      const train::StepStats stats = trainer.step();
      own.losses.push_back(stats.loss);
      if (step == 0) own.first_norm = stats.grad_norm;
    }
  });
  for (const Steps& other : all) CHECK((other == all[0]));
  return all[0];
}

}  // namespace

TEST_CASE("the blocks of the guides load and are planned unchanged") {
  for (const Block& b : blocks()) {
    const Recipe r = load(b, {}, b.world);
    INFO(b.name);
    const RunPlan plan = plan::make_plan(r, b.world, 512);
    CHECK(plan.layout.world == b.world);
    Diagnostics missing;
    plan::check_supported(r, missing);
    INFO(missing.text(recipe::Severity::error));
    CHECK_FALSE(missing.has_errors());
  }
}

TEST_CASE("the blocks of the guides train as a single rank does") {
  for (const Block& b : blocks()) {
    INFO(b.name);
    int64_t small = 0;
    const Recipe whole = load(b, {}, b.world);
    const Changes changes = shrunk(whole, b.world, small);
    const Recipe r = load(b, changes, small);
    const bool packed = r.packed_sequence.packed_sequence_size > 0;
    const auto data = packed ? std::make_shared<PackedCountingData>(kVocab, 32)
                             : std::make_shared<CountingData>(kVocab, 32);
    const Changes experts = b.experts ? Changes{"model.moe.num_experts=8"} : Changes{};
    const Recipe single =
        tiny(with(experts, {fmt::format("model.num_layers={}", r.model.num_layers),
                            "model.hidden_size=64", "model.num_attention_heads=8",
                            "model.num_query_groups=4", "model.ffn_hidden_size=96",
                            "~model.vocab_size", "dataset.seq_length=32", "train.steps=3",
                            fmt::format("train.global_batch_size={}", r.train.global_batch_size),
                            "train.micro_batch_size=1", "mixed_precision.name=bf16_mixed",
                            packed ? "packed_sequence.packed_sequence_size=32"
                                   : "packed_sequence.packed_sequence_size=0"}));
    // Both compute in bf16, whose 8 bits round each activation of the two layouts differently. The
    // norm shows a factor on all gradients, which hardly changes Adam's losses.
    const Steps one = three_steps(single, 1, data), block = three_steps(r, int(small), data);
    check_close(one.losses, block.losses, 2e-2);
    CHECK(block.first_norm == Approx(one.first_norm).epsilon(2e-2));
  }
}

}  // namespace parity_foreign_recipes_test
