// Every rule of a recipe: violated alone, and satisfied at its boundary.
#include <catch2/catch.hpp>

#include "recipe/built.h"
#include "recipe/layout.h"
#include "recipe/overlap.h"
#include "recipe/recipe.h"

using namespace mtrain;
using Catch::Matchers::Contains;

namespace {

const char* kBase =
    "model: {num_layers: 8, hidden_size: 256, num_attention_heads: 8, num_query_groups: 4,\n"
    "        ffn_hidden_size: 704, vocab_size: 512}\n"
    "dataset: {train: x, seq_length: 1024}\n"
    "train: {global_batch_size: 32, micro_batch_size: 1}\n";

using Overrides = std::vector<std::string>;

struct Case {
  const char* what;
  int64_t world;
  Overrides overrides;
  Severity severity;
  const char* field;  // null: no problem of that severity at all
  const char* part;   // of the reason
};

Problems check(int64_t world, const Overrides& overrides) {
  Problems problems;
  load_recipe_text(kBase, "base.yaml", overrides, problems, world);
  return problems;
}

void run(const std::vector<Case>& cases) {
  for (const auto& c : cases) {
    const Problems problems = check(c.world, c.overrides);
    std::string all;
    for (const auto& p : problems.sorted()) all += p.str() + "\n";
    INFO(c.what << "\n" << all);
    int of_severity = 0;
    bool found = false;
    for (const auto& p : problems.sorted()) {
      if (p.severity == Severity::error && c.severity != Severity::error) FAIL("an error besides");
      if (p.severity != c.severity) continue;
      ++of_severity;
      if (!c.field || p.field != c.field) continue;
      found = found || p.reason.find(c.part) != std::string::npos;
    }
    if (c.field) {
      CHECK(found);
      // Violated alone: one error, so that no rule repeats another's complaint.
      if (c.severity == Severity::error) CHECK(of_severity == 1);
    } else {
      CHECK(of_severity == 0);
    }
  }
}

constexpr auto E = Severity::error;
constexpr auto W = Severity::warning;
constexpr auto A = Severity::resolved;
const Overrides kMegatron{"distributed.strategy=megatron_ddp"};

Overrides pipeline(const Overrides& more) {
  Overrides o{"distributed.pp_size=4", "distributed.pipeline={}"};
  o.insert(o.end(), more.begin(), more.end());
  return o;
}
Overrides interleaved(const Overrides& more) {
  Overrides o{"distributed.pp_size=4", "distributed.pipeline.pp_schedule=interleaved_1f1b",
              "distributed.vpp_size=2"};
  o.insert(o.end(), more.begin(), more.end());
  return o;
}
Overrides experts(const Overrides& more) {
  Overrides o{"model.moe.num_experts=8", "distributed.ep_size=4"};
  o.insert(o.end(), more.begin(), more.end());
  return o;
}

}  // namespace

TEST_CASE("model, data, optimizer and recompute rules") {
  run({
      {"base", 1, {}, E, nullptr, ""},
      {"heads",
       1,
       {"model.num_attention_heads=12", "model.num_query_groups=4"},
       E,
       "model.num_attention_heads",
       "256 is not divisible by 12"},
      {"heads with own size",
       1,
       {"model.num_attention_heads=12", "model.num_query_groups=4", "model.kv_channels=32"},
       E,
       nullptr,
       ""},
      {"groups", 1, {"model.num_query_groups=3"}, E, "model.num_query_groups", "8 heads"},
      {"more groups than heads", 1, {"model.num_query_groups=16"}, E, "model.num_query_groups", ""},
      {"odd head", 1, {"model.kv_channels=33"}, E, "model.kv_channels", "even"},
      {"odd head, learned",
       1,
       {"model.kv_channels=33", "model.position_embedding=learned"},
       E,
       nullptr,
       ""},
      {"positions", 1, {"model.max_position_embeddings=1023"}, E, "dataset.seq_length", "1023"},
      {"positions fit", 1, {"model.max_position_embeddings=1024"}, E, nullptr, ""},
      {"rope scaling on learned",
       1,
       {"model.position_embedding=learned", "model.rope_scaling=linear"},
       E,
       "model.rope_scaling.type",
       "learned"},
      {"rope factors",
       1,
       {"model.rope_scaling=llama3", "model.rope_scaling.low_freq_factor=4"},
       E,
       "model.rope_scaling.low_freq_factor",
       "below"},
      {"attention dropout", 1, {"model.attention_dropout=0.1"}, E, "model.attention_dropout", ""},
      {"top-k", 1, {"model.moe=4", "model.moe.router_topk=5"}, E, "model.moe.router_topk", "5"},
      {"no data", 1, {"~dataset.train"}, E, "dataset.train", ""},
      {"weights", 1, {"dataset.train_weights=[1,2]"}, E, "dataset.train_weights", "2 weights"},
      {"validation data", 1, {"validation.every_steps=5"}, E, "validation.every_steps", ""},
      {"tokenizer path", 1, {"tokenizer.type=huggingface"}, E, "tokenizer.type", ""},
      {"tokenizer implied", 1, {"tokenizer.path=t.json"}, A, "tokenizer.type", "huggingface"},
      {"byte with path", 1, {"tokenizer.type=byte", "tokenizer.path=t"}, E, "tokenizer.path", ""},
      {"small vocabulary", 1, {"model.vocab_size=200"}, E, "model.vocab_size", "200"},
      {"batch",
       1,
       {"train.global_batch_size=5", "train.micro_batch_size=2"},
       E,
       "train.global_batch_size",
       "not a multiple"},
      {"batch smaller",
       1,
       {"train.global_batch_size=2", "train.micro_batch_size=4"},
       E,
       "train.global_batch_size",
       ""},
      {"warm-up",
       1,
       {"train.steps=10", "lr_scheduler.warmup_steps=10"},
       E,
       "lr_scheduler.warmup_steps",
       "10"},
      {"warm-up fits", 1, {"train.steps=10", "lr_scheduler.warmup_steps=9"}, E, nullptr, ""},
      {"min_lr", 1, {"lr_scheduler.min_lr=1"}, E, "lr_scheduler.min_lr", "above"},
      {"lr zero", 1, {"optimizer.lr=0"}, E, "optimizer.lr", "range"},
      {"betas", 1, {"optimizer.betas=[0.9,1]"}, E, "optimizer.betas", "range"},
      {"betas zero", 1, {"optimizer.betas=[0,0]"}, E, nullptr, ""},
      {"wsd", 1, {"lr_scheduler.style=WSD"}, E, "lr_scheduler.wsd_decay_steps", "needs"},
      {"wsd steps elsewhere",
       1,
       {"lr_scheduler.wsd_decay_steps=3"},
       E,
       "lr_scheduler.wsd_decay_steps",
       "style is cosine"},
      {"wsd too long",
       1,
       {"lr_scheduler.style=wsd", "train.steps=10", "lr_scheduler.warmup_steps=4",
        "lr_scheduler.wsd_decay_steps=7"},
       E,
       "lr_scheduler.wsd_decay_steps",
       "longer"},
      {"wsd fits",
       1,
       {"lr_scheduler.style=wsd", "train.steps=10", "lr_scheduler.warmup_steps=4",
        "lr_scheduler.wsd_decay_steps=6"},
       E,
       nullptr,
       ""},
      {"method without full", 1, {"recompute.method=block"}, E, "recompute.method", "none"},
      {"block without number",
       1,
       {"recompute=full", "recompute.method=block"},
       E,
       "recompute.num_layers",
       "needs"},
      {"too many layers",
       1,
       {"recompute=full", "recompute.num_layers=9"},
       E,
       "recompute.num_layers",
       "9"},
      {"all layers", 1, {"recompute=full", "recompute.num_layers=8"}, E, nullptr, ""},
      {"no modules",
       1,
       {"recompute=selective", "recompute.modules=[]"},
       E,
       "recompute.modules",
       ""},
      {"activation_checkpointing",
       1,
       {"distributed.activation_checkpointing=true"},
       E,
       nullptr,
       ""},
  });
}

TEST_CASE("precision is set in one place") {
  run({
      {"policy",
       1,
       {"distributed.mp_policy.param_dtype=fp32", "mixed_precision=bf16_mixed"},
       E,
       "distributed.mp_policy.param_dtype",
       "disagrees"},
      {"policy alone decides",
       1,
       {"distributed.mp_policy.param_dtype=torch.float32"},
       A,
       "mixed_precision.name",
       "fp32"},
      {"params_dtype",
       1,
       {"mixed_precision=fp32", "model.params_dtype=bf16"},
       E,
       "mixed_precision.params_dtype",
       "disagrees"},
      {"reduce",
       1,
       {"distributed.mp_policy.reduce_dtype=bf16", "mixed_precision.grad_reduce_in_fp32=true"},
       E,
       "distributed.mp_policy.reduce_dtype",
       "disagrees"},
      {"fp8 gather",
       1,
       {"mixed_precision.fp8_param_gather=true"},
       E,
       "mixed_precision.fp8_param_gather",
       "8-bit"},
      {"fp8 on a100",
       1,
       {"mixed_precision.fp8=hybrid", "hardware.gpu=a100"},
       E,
       "mixed_precision.fp8",
       "a100"},
      {"fp8 on a cpu",
       1,
       {"mixed_precision.fp8=hybrid", "train.device=cpu"},
       E,
       "mixed_precision.fp8",
       "CPU"},
      {"fp8 on h100",
       1,
       {"mixed_precision.fp8=hybrid", "mixed_precision.fp8_param_gather=true"},
       E,
       nullptr,
       ""},
      {"loss scale", 1, {"mixed_precision.loss_scale=1024"}, E, "mixed_precision.loss_scale", ""},
      {"dynamic",
       1,
       {"mixed_precision=fp16_mixed", "optimizer.loss_scale=dynamic"},
       E,
       nullptr,
       ""},
  });
}

TEST_CASE("the world must be divisible as the recipe divides it") {
  run({
      {"product",
       6,
       {"distributed.tp_size=4"},
       E,
       "distributed.tp_size",
       "tp(4) * pp(1) * cp(1) = 4 does not divide the world of 6"},
      {"one rank", 1, {"distributed.cp_size=2"}, E, "distributed.tp_size", "world of 1"},
      {"fits", 8, {"distributed.tp_size=4", "distributed.cp_size=2"}, E, nullptr, ""},
      {"dp_size",
       8,
       {"distributed.tp_size=2", "distributed.dp_size=2"},
       E,
       "distributed.dp_size",
       "is 4"},
      {"dp_size fits", 8, {"distributed.tp_size=2", "distributed.dp_size=4"}, E, nullptr, ""},
      {"global batch", 64, {}, E, "train.global_batch_size", "micro-batch 1 * dp 64"},
      {"global batch fits", 32, {}, E, nullptr, ""},
      {"replicate",
       8,
       {"distributed.dp_replicate_size=3"},
       E,
       "distributed.dp_replicate_size",
       "does not divide"},
      {"replicate all",
       8,
       {"distributed.dp_replicate_size=8"},
       E,
       "distributed.dp_replicate_size",
       "nothing to shard"},
      {"replicate half", 8, {"distributed.dp_replicate_size=4"}, E, nullptr, ""},
      {"replicate off", 1, {"distributed.dp_replicate_size=1"}, E, nullptr, ""},
      {"node",
       16,
       {"distributed.tp_size=16", "model.num_attention_heads=16", "model.num_query_groups=16"},
       W,
       "distributed.tp_size",
       "leaves the 8 GPUs"},
      {"node fits", 8, {"distributed.tp_size=8", "model.num_query_groups=8"}, W, nullptr, ""},
      {"first level leaves the node",
       16,
       {"distributed.tp_size=4", "distributed.cp_size=4", "distributed.cp_comm_type=a2a+p2p",
        "distributed.hierarchical_context_parallel_sizes=[4,1]", "model.num_attention_heads=16",
        "model.num_query_groups=16"},
       W,
       "distributed.hierarchical_context_parallel_sizes",
       "leaves the 8 GPUs"},
  });
}

TEST_CASE("strategies") {
  const auto with = [](const char* strategy, Overrides o) {
    o.push_back(std::string("distributed.strategy=") + strategy);
    return o;
  };
  run({
      {"unknown", 1, {"distributed.strategy=fsdp3"}, E, "distributed.strategy", "fsdp3"},
      {"any case", 1, {"distributed.strategy=Megatron-FSDP"}, E, nullptr, ""},
      {"ddp tp", 2, with("ddp", {"distributed.tp_size=2"}), E, "distributed.tp_size", "ddp"},
      {"ddp cp", 2, with("ddp", {"distributed.cp_size=2"}), E, "distributed.cp_size", "ddp"},
      {"ddp pp", 2, with("ddp", {"distributed.pp_size=2"}), E, "distributed.pp_size", "ddp"},
      {"ddp ep", 2, with("ddp", {"distributed.ep_size=2", "model.moe=4"}), E, "distributed.ep_size",
       "ddp"},
      {"ddp sp", 2, with("ddp", {"distributed.sequence_parallel=true"}), E,
       "distributed.sequence_parallel", "ddp"},
      {"ddp replicate", 4, with("ddp", {"distributed.dp_replicate_size=2"}), E,
       "distributed.dp_replicate_size", "fsdp2"},
      {"ddp alone", 4, with("ddp", {}), E, nullptr, ""},
      {"mfsdp pp", 2, with("mfsdp", {"distributed.pp_size=2"}), E, "distributed.pp_size", ""},
      {"mfsdp ep", 2, with("mfsdp", {"distributed.ep_size=2", "model.moe=4"}), E,
       "distributed.ep_size", "megatron_fsdp"},
      {"mfsdp sp", 2, with("mfsdp", {"distributed.sequence_parallel=true"}), E,
       "distributed.sequence_parallel", "megatron_fsdp"},
      {"mfsdp replicate", 4, with("mfsdp", {"distributed.dp_replicate_size=2"}), E,
       "distributed.dp_replicate_size", "fsdp2"},
      {"mfsdp selective", 1, with("mfsdp", {"recompute=selective"}), E, "recompute.granularity",
       ""},
      {"mfsdp tp cp", 4, with("mfsdp", {"distributed.tp_size=2", "distributed.cp_size=2"}), E,
       nullptr, ""},
      {"mddp replicate", 4, with("megatron_ddp", {"distributed.dp_replicate_size=2"}), E,
       "distributed.dp_replicate_size", "fsdp2"},
      {"fsdp2 field", 1, with("megatron_ddp", {"distributed.defer_fsdp_grad_sync=true"}), E,
       "distributed.defer_fsdp_grad_sync", "read by strategy fsdp2 only"},
      {"mfsdp field",
       1,
       {"distributed.zero_dp_strategy=2"},
       E,
       "distributed.zero_dp_strategy",
       "megatron_fsdp"},
      {"mddp field", 2, with("fsdp2", {"ddp.overlap_grad_reduce=true"}), E,
       "ddp.overlap_grad_reduce", "megatron_ddp"},
      {"ddp section",
       2,
       {"ddp.overlap_grad_reduce=true"},
       A,
       "distributed.strategy",
       "megatron_ddp"},
      {"use_megatron_fsdp",
       2,
       {"dist.use_megatron_fsdp=true", "distributed.zero_dp_strategy=2"},
       E,
       nullptr,
       ""},
      {"one rank", 1, with("fsdp2", {}), A, "distributed.strategy", "nothing is sharded"},
      {"sp without tp",
       1,
       {"distributed.sequence_parallel=true"},
       W,
       "distributed.sequence_parallel",
       "tp_size is 1"},
      {"heads by tp",
       16,
       {"distributed.tp_size=16", "model.num_query_groups=8"},
       E,
       "distributed.tp_size",
       "8 attention heads"},
      {"kv heads by tp",
       6,
       {"distributed.tp_size=6", "model.num_attention_heads=12", "model.num_query_groups=4",
        "model.kv_channels=32", "model.ffn_hidden_size=768"},
       E,
       "distributed.tp_size",
       "key-value heads"},
      {"kv heads fewer", 8, {"distributed.tp_size=8"}, E, nullptr, ""},
      {"ffn by tp",
       8,
       {"distributed.tp_size=8", "model.ffn_hidden_size=700"},
       E,
       "distributed.tp_size",
       "ffn_hidden_size of 700"},
      {"vocabulary",
       4,
       {"distributed.tp_size=4", "model.vocab_size=513"},
       A,
       "model.vocab_size",
       "padded to 1024"},
      {"gather without reduce", 2,
       with("megatron_ddp", {"ddp.overlap_param_gather=true", "ddp.overlap_grad_reduce=false",
                             "debug.strict=false"}),
       E, "ddp.overlap_param_gather", "needs overlap_grad_reduce"},
      {"gather unsharded", 2,
       with("megatron_ddp",
            {"ddp.overlap_param_gather=true", "ddp.use_distributed_optimizer=false"}),
       E, "ddp.overlap_param_gather", "not sharded"},
      {"with step, one stage", 2,
       with("megatron_ddp", {"ddp.overlap_param_gather_with_optimizer_step=true"}), E,
       "ddp.overlap_param_gather_with_optimizer_step", "several stages"},
  });
}

TEST_CASE("experts") {
  run({
      {"dense", 4, {"distributed.ep_size=2"}, E, "distributed.ep_size", "dense"},
      {"experts by ep",
       3,
       {"distributed.ep_size=3", "model.moe=8", "train.global_batch_size=33"},
       E,
       "distributed.ep_size",
       "8 experts"},
      {"dp cp by ep", 2, experts({}), E, "distributed.ep_size", "dp(2) * cp(1) = 2"},
      {"fits", 4, experts({}), E, nullptr, ""},
      {"fits over cp", 4, experts({"distributed.cp_size=2"}), E, nullptr, ""},
      {"not over tp", 4, experts({"distributed.tp_size=2"}), E, "distributed.ep_size", "= 2"},
      {"moe block", 2, {"distributed.moe={}", "model.moe=8"}, W, "distributed.moe", "ignored"},
  });
}

TEST_CASE("pipelines") {
  run({
      {"no block", 4, {"distributed.pp_size=4"}, E, "distributed.pp_size", "pipeline section"},
      {"block", 4, pipeline({}), E, nullptr, ""},
      {"block without pp", 4, {"distributed.pipeline={}"}, W, "distributed.pipeline", "ignored"},
      {"class name", 4, interleaved({"distributed.pipeline.pp_schedule=Interleaved1F1B"}), E,
       nullptr, ""},
      {"stages", 4, pipeline({"distributed.pipeline.layers_per_stage=3"}), E,
       "distributed.pipeline.layers_per_stage", "= 3 stages"},
      {"stages up", 4,
       pipeline({"distributed.pipeline.layers_per_stage=3",
                 "distributed.pipeline.round_virtual_stages_to_pp_multiple=up"}),
       E, nullptr, ""},
      {"stages down to none", 4,
       pipeline({"distributed.pipeline.layers_per_stage=3",
                 "distributed.pipeline.round_virtual_stages_to_pp_multiple=down"}),
       E, "distributed.pipeline.round_virtual_stages_to_pp_multiple", "none"},
      {"1f1b with two", 4, pipeline({"distributed.vpp_size=2"}), E,
       "distributed.pipeline.pp_schedule", "one stage"},
      {"interleaved with one", 4, interleaved({"distributed.vpp_size=1"}), E,
       "distributed.pipeline.pp_schedule", "at least two"},
      {"bfs with one", 4,
       interleaved({"distributed.vpp_size=1", "distributed.pipeline.pp_schedule=looped_bfs"}), E,
       "distributed.pipeline.pp_schedule", "at least two"},
      {"v with three",
       2,
       {"distributed.pp_size=2", "distributed.vpp_size=3",
        "distributed.pipeline.pp_schedule=ZBVZeroBubble"},
       E,
       "distributed.pipeline.pp_schedule",
       "exactly two"},
      {"zero bubble with one", 4,
       interleaved({"distributed.vpp_size=1", "distributed.pipeline.pp_schedule=zero_bubble"}), E,
       nullptr, ""},
      {"vpp against lps", 4,
       interleaved({"distributed.vpp_size=4", "distributed.pipeline.layers_per_stage=1"}), E,
       "distributed.vpp_size", "disagrees"},
      {"too few layers", 4, interleaved({"distributed.vpp_size=3"}), E, "model.num_layers",
       "12 stages"},
      {"uneven", 4, pipeline({"model.num_layers=10"}), A, "distributed.pipeline", "first 2 stages"},
      {"micro-batches", 4, interleaved({"train.global_batch_size=9"}), E, "train.global_batch_size",
       "2 rounds"},
      {"micro-batches legal", 4, interleaved({"train.global_batch_size=10"}), E, nullptr, ""},
      {"few micro-batches legal", 4, interleaved({"train.global_batch_size=7"}), E, nullptr, ""},
      {"group small", 4, interleaved({"distributed.pipeline.microbatch_group_size_per_vp_stage=3"}),
       E, "distributed.pipeline.microbatch_group_size_per_vp_stage", "group of 3"},
      {"group rest", 4,
       interleaved({"train.global_batch_size=8", "model.microbatch_group_size_per_vp_stage=6"}), E,
       "distributed.pipeline.microbatch_group_size_per_vp_stage", "at least pp_size"},
      {"group legal", 4,
       interleaved({"train.global_batch_size=10", "model.microbatch_group_size_per_vp_stage=5"}), E,
       nullptr, ""},
      {"group rest legal", 4,
       interleaved({"train.global_batch_size=9", "model.microbatch_group_size_per_vp_stage=5"}), E,
       nullptr, ""},
      {"group of 1f1b", 4, pipeline({"model.microbatch_group_size_per_vp_stage=4"}), E,
       "distributed.pipeline.microbatch_group_size_per_vp_stage", "interleaved"},
      {"1f1b short", 4, pipeline({"train.global_batch_size=3"}), W, "train.global_batch_size",
       "fewer"},
      {"1f1b enough", 4, pipeline({"train.global_batch_size=4"}), W, nullptr, ""},
      {"dualpipe short", 4,
       interleaved({"distributed.pipeline.pp_schedule=DualPipeV", "train.global_batch_size=7"}), E,
       "train.global_batch_size", "at least 2 x pp_size = 8"},
      {"dualpipe enough", 4,
       interleaved({"distributed.pipeline.pp_schedule=DualPipeV", "train.global_batch_size=8"}), E,
       nullptr, ""},
      {"local batch", 4,
       pipeline({"train.micro_batch_size=4", "distributed.pipeline.pp_microbatch_size=3",
                 "train.global_batch_size=12"}),
       E, "distributed.pipeline.pp_microbatch_size", "not a whole number"},
      {"global batch", 24,
       pipeline({"train.micro_batch_size=8", "distributed.pipeline.pp_microbatch_size=8"}), E,
       "train.global_batch_size", "micro-batch 8 * dp 6"},
      {"layout", 4, pipeline({"distributed.pipeline.layout='Ett|tt|tt|ttL'"}), E, nullptr, ""},
      {"layout groups", 4, pipeline({"distributed.pipeline.layout='E(tt|)*3ttL'"}), E, nullptr, ""},
      {"layout sum", 4, pipeline({"distributed.pipeline.layout='Et*2|t*2|t*2|tL'"}), E,
       "distributed.pipeline.layout", "7 layers"},
      {"layout stages", 4, pipeline({"distributed.pipeline.layout='Et*4|t*2|t*2L'"}), E,
       "distributed.pipeline.layout", "3 stages"},
      {"layout without loss", 4, pipeline({"distributed.pipeline.layout='Ett|tt|tt|tt'"}), E,
       "distributed.pipeline.layout", "L (the loss)"},
      {"layout letter", 4, pipeline({"distributed.pipeline.layout='Ett|tx|tt|ttL'"}), E,
       "distributed.pipeline.layout", "`x`"},
      {"layout brackets", 4, pipeline({"distributed.pipeline.layout='E(tt|tt|ttL'"}), E,
       "distributed.pipeline.layout", "missing"},
  });
}

TEST_CASE("context parallelism and packing") {
  const Overrides cp4{"distributed.cp_size=4"};
  const auto with = [&](Overrides o) {
    o.push_back("distributed.cp_size=4");
    return o;
  };
  const std::string sizes = "model.hierarchical_context_parallel_sizes=";
  run({
      {"sequence", 4, with({"dataset.seq_length=1020"}), E, "dataset.seq_length",
       "2 x cp_size = 8"},
      {"sequence fits", 4, with({"dataset.seq_length=1016"}), E, nullptr, ""},
      {"list", 4, with({"model.cp_comm_type=[p2p,all_gather]"}), E, "distributed.cp_comm_type",
       "2 entries for 8 layers"},
      {"list fits", 4, with({"model.cp_comm_type=[p2p,allgather,a2a,p2p,p2p,p2p,p2p,p2p]"}), E,
       nullptr, ""},
      {"unknown", 4, with({"model.cp_comm_type=ring"}), E, "distributed.cp_comm_type", "`ring`"},
      {"a2a heads", 4,
       with({"model.cp_comm_type=a2a", "model.num_attention_heads=2",
             "model.num_query_groups=none"}),
       E, "distributed.cp_comm_type", ""},
      {"a2a kv heads", 4, with({"model.cp_comm_type=a2a", "model.num_query_groups=2"}), E,
       "distributed.cp_comm_type", "2 key-value heads"},
      {"a2a fits", 4, with({"model.cp_comm_type=a2a"}), E, nullptr, ""},
      {"no sizes", 4, with({"model.cp_comm_type=a2a+p2p"}), E,
       "distributed.hierarchical_context_parallel_sizes", "needs the sizes"},
      {"three levels",
       8,
       {"distributed.cp_size=8", "model.cp_comm_type=a2a+p2p", sizes + "[2,2,2]"},
       E,
       "distributed.hierarchical_context_parallel_sizes",
       "3 levels"},
      {"product", 4, with({"model.cp_comm_type=a2a+p2p", sizes + "[2,4]"}), E,
       "distributed.hierarchical_context_parallel_sizes", "2 x 4 = 8"},
      {"first level", 4,
       with({"model.cp_comm_type=a2a+p2p", sizes + "[4,1]", "model.num_query_groups=2"}), E,
       "distributed.cp_comm_type", "first level"},
      {"hierarchy fits", 4, with({"model.cp_comm_type=a2a+p2p", sizes + "[2,2]"}), E, nullptr, ""},
      {"unused sizes", 4, with({sizes + "[2,2]"}), W,
       "distributed.hierarchical_context_parallel_sizes", "ignored"},
      {"decentralized", 4,
       with({"model.cp_comm_type=a2a+p2p", sizes + "[2,2]", "dist.use_decentralized_pg=true"}), E,
       "distributed.use_decentralized_pg", "levels"},
      {"window p2p", 4, with({"model.window_size=64"}), E, "distributed.cp_comm_type", "sliding"},
      {"window all_gather", 4, with({"model.window_size=64", "model.cp_comm_type=all_gather"}), E,
       nullptr, ""},
      {"packing batch",
       1,
       {"packed_sequence.packed_sequence_size=4096", "train.micro_batch_size=2"},
       E,
       "packed_sequence.packed_sequence_size",
       "micro-batch is 2"},
      {"packing cp", 4, with({"packed_sequence.packed_sequence_size=4100"}), E,
       "packed_sequence.packed_sequence_size", "2 x cp_size = 8"},
      {"packing fits", 4, with({"packed_sequence.packed_sequence_size=4096"}), A,
       "packed_sequence.packed_sequence_size", "padded"},
  });
}

TEST_CASE("what is asked to overlap must be able to") {
  const auto megatron = [](Overrides o) {
    o.push_back("distributed.strategy=megatron_ddp");
    return o;
  };
  const auto fine = [](const char* flag) {
    return interleaved({std::string("comm_overlap.overlap_p2p_") + flag});
  };
  const char* tp = "comm_overlap.tp_comm_overlap";
  const std::string moe = "comm_overlap.overlap_moe_expert_parallel_comm";
  run({
      {"tp 1", 1, {"model.tp_comm_overlap=true"}, E, tp, "tp_size 1"},
      {"no sp",
       2,
       {"model.tp_comm_overlap=true", "distributed.tp_size=2"},
       E,
       tp,
       "sequence_parallel"},
      {"tp",
       2,
       {"model.tp_comm_overlap=true", "distributed.tp_size=2",
        "distributed.sequence_parallel=true"},
       E,
       nullptr,
       ""},
      {"not strict", 1, {"model.tp_comm_overlap=true", "debug.strict=false"}, W, tp, "turned off"},
      {"false is fine", 1, {"model.tp_comm_overlap=false"}, E, nullptr, ""},
      {"preset elsewhere",
       2,
       {"model.tp_comm_overlap=true", "distributed.tp_size=2", "distributed.sequence_parallel=true",
        "model.tp_comm_overlap_cfg=userbuffers_bf16_h100_h6144_tp2_mbs2_seqlen2048"},
       W,
       "comm_overlap.tp_comm_overlap_cfg",
       "hidden_size 6144 (here 256)"},
      {"preset misspelt",
       1,
       {"model.tp_comm_overlap_cfg=userbuffers_bf16_h100_h6144_tp2_mbs2_seqlen204"},
       E,
       "comm_overlap.tp_comm_overlap_cfg",
       "no preset"},
      {"product misspelt",
       1,
       {"model.tp_comm_overlap_cfg={qkv_fpro: {method: bulk}}"},
       E,
       "comm_overlap.tp_comm_overlap_cfg",
       "no product"},
      {"method impossible",
       1,
       {"model.tp_comm_overlap_cfg={qkv_fprop: {method: pipeline}}"},
       E,
       "comm_overlap.tp_comm_overlap_cfg",
       "ring_exchange"},
      {"dgrad with wgrad",
       1,
       {"model.tp_comm_overlap_cfg={qkv_dgrad: {method: pipeline}, qkv_wgrad: {method: bulk}}"},
       E,
       "comm_overlap.tp_comm_overlap_cfg",
       "nothing to hide"},
      {"cfg without overlap",
       1,
       {"model.tp_comm_overlap_cfg={qkv_fprop: {num_sm: 2}}"},
       W,
       "comm_overlap.tp_comm_overlap_cfg",
       "ignored"},
      {"p2p, one stage", 4, pipeline({"model.overlap_p2p_comm=true"}), E,
       "comm_overlap.overlap_p2p_comm", "single stage"},
      {"p2p, no pipeline",
       1,
       {"model.overlap_p2p_comm=true"},
       E,
       "comm_overlap.overlap_p2p_comm",
       "no pipeline"},
      {"p2p", 4, interleaved({"model.overlap_p2p_comm=true"}), E, nullptr, ""},
      {"batch", 4, interleaved({"model.batch_p2p_comm=true"}), E, nullptr, ""},
      {"batch, no pipeline",
       1,
       {"model.batch_p2p_comm=true"},
       E,
       "comm_overlap.batch_p2p_comm",
       "no pipeline"},
      {"reduce alone", 1, megatron({"ddp.overlap_grad_reduce=true"}), E, "ddp.overlap_grad_reduce",
       "not shared"},
      {"reduce over cp", 2, megatron({"ddp.overlap_grad_sync=true", "distributed.cp_size=2"}), E,
       nullptr, ""},
      {"align", 4, megatron({"ddp.align_param_gather=true"}), E, "ddp.align_param_gather",
       "no pipeline"},
      {"align fits", 8, megatron(interleaved({"ddp.align_param_gather=true"})), E, nullptr, ""},
      {"with step fits", 8,
       megatron(interleaved({"ddp.overlap_param_gather_with_optimizer_step=true"})), E, nullptr,
       ""},
      {"cp", 1, {"comm_overlap.cp_overlap=true"}, E, "comm_overlap.cp_overlap", "cp_size 1"},
      {"cp fits", 2, {"comm_overlap.cp_overlap=true", "distributed.cp_size=2"}, E, nullptr, ""},
      {"embedding",
       1,
       {"model.defer_embedding_wgrad_compute=true"},
       E,
       "comm_overlap.defer_embedding_wgrad_compute",
       "no pipeline"},
      {"embedding fits", 4, pipeline({"model.defer_embedding_wgrad_compute=true"}), E, nullptr, ""},
      {"limit",
       1,
       {"model.wgrad_deferral_limit=-1"},
       E,
       "comm_overlap.wgrad_deferral_limit",
       "range"},
      {"limit unused",
       1,
       {"model.wgrad_deferral_limit=2"},
       W,
       "comm_overlap.wgrad_deferral_limit",
       "ignored"},
      {"backward stream", 4, pipeline({"model.overlap_p2p_backward_on_comm_stream=true"}), E,
       "comm_overlap.overlap_p2p_backward_on_comm_stream", "single stage"},
      {"backward stream fits", 4, fine("backward_on_comm_stream=true"), E, nullptr, ""},
      {"without p2p", 4,
       interleaved(
           {"model.overlap_p2p_backward_on_comm_stream=true", "model.overlap_p2p_comm=false"}),
       E, "comm_overlap.overlap_p2p_backward_on_comm_stream", "overlap_p2p_comm"},
      {"layer wgrad",
       1,
       {"model.overlap_p2p_with_transformer_layer_wgrad=true"},
       E,
       "comm_overlap.overlap_p2p_with_transformer_layer_wgrad",
       "no pipeline"},
      {"delayed layers",
       1,
       {"model.overlap_p2p_wgrad_delayed_layer_number=2"},
       E,
       "comm_overlap.overlap_p2p_wgrad_delayed_layer_number",
       "no pipeline"},
      {"delayed layers, too many", 4, fine("wgrad_delayed_layer_number=2"), E,
       "comm_overlap.overlap_p2p_wgrad_delayed_layer_number", "a chunk has 1"},
      {"delayed layers fit", 4,
       interleaved({"model.overlap_p2p_wgrad_delayed_layer_number=2", "model.num_layers=16"}), E,
       nullptr, ""},
      {"delay",
       1,
       {"model.delay_wgrad_compute=true"},
       E,
       "comm_overlap.delay_wgrad_compute",
       "fine-grained"},
      {"delay fits", 4,
       interleaved(
           {"model.delay_wgrad_compute=true", "model.overlap_p2p_backward_on_comm_stream=true"}),
       E, nullptr, ""},
      {"moe", 4, experts({moe + "=true"}), E, nullptr, ""},
      {"moe delay", 4, experts({moe + "=true", "model.delay_wgrad_compute=true"}), E, nullptr, ""},
      {"moe ep 1", 1, {"model.moe=8", moe + "=true"}, E, moe.c_str(), "ep_size 1"},
      {"moe dispatcher", 4, experts({moe + "=true", "model.moe_token_dispatcher_type=allgather"}),
       E, moe.c_str(), "dispatcher"},
      {"moe fp32", 4, experts({moe + "=true", "mixed_precision=fp32"}), E, moe.c_str(), "bf16"},
      {"moe full recompute", 4, experts({moe + "=true", "recompute=full"}), E, moe.c_str(),
       "whole"},
      {"moe recomputed", 4,
       experts({moe + "=true", "recompute=selective", "recompute.modules=[moe]"}), E, moe.c_str(),
       "recomputed"},
      {"moe shared", 4, experts({moe + "=true", "model.moe.shared_expert_overlap=true"}), E,
       moe.c_str(), "shared"},
      {"moe pipeline", 16,
       experts({moe + "=true", "distributed.pp_size=4", "distributed.pipeline={}"}), E, moe.c_str(),
       "several stages"},
      {"connections",
       1,
       {"launch.cuda_device_max_connections=1"},
       E,
       "launch.cuda_device_max_connections",
       "fsdp2"},
      {"connections fit", 1, megatron({"launch.cuda_device_max_connections=1"}), E, nullptr, ""},
  });
}

namespace {
Recipe recipe_of(int64_t world, const Overrides& overrides, const std::string& more = "") {
  Problems problems;
  const Recipe r = load_recipe_text(kBase + more, "base.yaml", overrides, problems, world);
  INFO(problems.text(Severity::error));
  REQUIRE_FALSE(problems.has_errors());
  return r;
}
Overlap overlap_of(int64_t world, const Overrides& overrides, const std::string& more = "") {
  const Recipe r = recipe_of(world, overrides, more);
  return resolve_overlap(r, layout_of(r, world));
}
}  // namespace

TEST_CASE("auto is resolved by the layout") {
  const Overrides mddp{"distributed.strategy=megatron_ddp"};
  const Overlap one = overlap_of(1, mddp);
  REQUIRE_FALSE(one.overlap_grad_reduce);
  REQUIRE_FALSE(one.cp_overlap);
  const Overlap two = overlap_of(2, mddp);
  REQUIRE(two.overlap_grad_reduce);
  REQUIRE(two.overlap_param_gather);
  REQUIRE_FALSE(two.align_param_gather);
  REQUIRE(two.bucket_size == 40000000);
  REQUIRE(two.layernorm_sm_margin == 16);
  REQUIRE(overlap_of(64, {mddp[0], "train.global_batch_size=64"}).bucket_size == 64000000);
  REQUIRE(overlap_of(2, mddp, "comm_overlap: {}\n").bucket_size == 134217728);
  REQUIRE(overlap_of(2, {mddp[0], "ddp.bucket_size=5"}).bucket_size == 5);
  REQUIRE_FALSE(
      overlap_of(2, {mddp[0], "ddp.use_distributed_optimizer=false"}).overlap_param_gather);
  REQUIRE_FALSE(overlap_of(2, {}).overlap_grad_reduce);  // fsdp2 has its own

  const Overlap several = overlap_of(4, interleaved({}));
  REQUIRE(several.overlap_p2p_comm);
  REQUIRE_FALSE(several.batch_p2p_comm);
  const Overlap single = overlap_of(4, pipeline({}));
  REQUIRE_FALSE(single.overlap_p2p_comm);
  REQUIRE(single.batch_p2p_comm);
  REQUIRE(overlap_of(4, interleaved({"model.batch_p2p_comm=true"})).batch_p2p_comm);
  REQUIRE(overlap_of(4, interleaved({"model.overlap_p2p_comm=false"})).batch_p2p_comm);
  REQUIRE(overlap_of(2, {"distributed.cp_size=2"}).cp_overlap);

  const Overrides tp{"distributed.tp_size=2", mddp[0]};
  REQUIRE_FALSE(
      overlap_of(2, {tp[0], mddp[0], "distributed.sequence_parallel=true"}).tp_comm_overlap);
  REQUIRE(overlap_of(2, tp).cuda_device_max_connections == 1);
  REQUIRE(overlap_of(2, {tp[0], mddp[0], "hardware.gpu=b200"}).cuda_device_max_connections == 32);
  REQUIRE(overlap_of(2, {tp[0]}).cuda_device_max_connections == 32);
  REQUIRE(overlap_of(2, mddp).cuda_device_max_connections == 32);
  REQUIRE_THAT(print_overlap(two), Contains("overlap_grad_reduce") && Contains("one bucket"));
}

TEST_CASE("layouts") {
  const auto layout = [](int64_t world, const Overrides& o) {
    return layout_of(recipe_of(world, o), world);
  };
  Layout l = layout(
      32, {"distributed.tp_size=2", "distributed.cp_size=2", "distributed.dp_replicate_size=2"});
  REQUIRE(l.dp == 8);
  REQUIRE(l.dp_shard == 4);
  REQUIRE(l.gradient_ranks() == 16);
  REQUIRE(l.micro_batches == 4);
  l = layout(4, pipeline({"model.num_layers=10"}));
  REQUIRE(l.layers_of_stage == std::vector<int64_t>{3, 3, 2, 2});
  REQUIRE(layout(4, interleaved({})).stages == 8);
  REQUIRE(layout(4, pipeline({"distributed.pipeline.layers_per_stage=2"})).stages_per_rank == 1);
  l = layout(2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=dfs",
                 "distributed.pipeline.layers_per_stage=3",
                 "distributed.pipeline.round_virtual_stages_to_pp_multiple=up"});
  REQUIRE(l.stages == 4);
  l = layout(4, pipeline({"distributed.pipeline.layout='Et|t*3|t*3,|tL'"}));
  REQUIRE(l.layers_of_stage == std::vector<int64_t>{1, 3, 3, 1});
  REQUIRE(layout_of(recipe_of(8, {"distributed.tp_size=2", "distributed.dp_size=4"}), 0).world ==
          8);
  REQUIRE(padded_vocab(50257, 1) == 50304);
  REQUIRE(padded_vocab(50257, 8) == 51200);
  REQUIRE(layout(4, experts({})).ep_shard == 1);
}

TEST_CASE("a feature without execution is refused by name") {
  const auto built = [](int64_t world, const Overrides& o) {
    Problems problems;
    check_built(recipe_of(world, o), problems, world);
    return problems.text(Severity::error);
  };
  REQUIRE(built(1, {}).empty());
  REQUIRE_THAT(built(2, {"distributed.tp_size=2"}), Contains("distributed.tp_size: not built yet"));
  REQUIRE_THAT(built(2, {}), Contains("several ranks"));
  REQUIRE_THAT(built(1, {"model.moe=8"}), Contains("experts"));
  REQUIRE_THAT(built(1, {"mixed_precision=fp16_mixed"}), Contains("fp16_mixed"));
  REQUIRE_THAT(built(1, {"packed_sequence.packed_sequence_size=64"}), Contains("packed"));
}

TEST_CASE("a printed layout loads again") {
  for (const auto& o :
       {pipeline({}), experts({}), Overrides{"ddp.overlap_grad_reduce=true"},
        Overrides{"distributed.strategy=mfsdp"}, Overrides{"distributed.strategy=ddp"},
        Overrides{"model.tp_comm_overlap_cfg={fc2_fprop: {num_splits: 2}}"}}) {
    const Recipe r = recipe_of(4, o);
    Problems problems;
    const Recipe again = load_recipe_text(print_recipe(r), "printed", {}, problems, 4);
    INFO(print_recipe(r) << problems.text(Severity::error));
    REQUIRE_FALSE(problems.has_errors());
    REQUIRE(print_recipe(again, false) == print_recipe(r, false));
  }
}
