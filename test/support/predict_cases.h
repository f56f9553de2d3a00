// Small models and layouts of ranks that tests of predictions share. A model is a family, and a
// layout is how ranks share it.
#pragma once
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "interchange/model_source.h"
#include "plan/cluster.h"
#include "plan/load_recipe.h"
#include "plan/run_plan.h"

namespace predict_cases {

using namespace mtrain;

inline constexpr int64_t kVocab = 256;

using Changes = std::vector<std::string>;

struct Case {
  int ranks;
  Changes more;
};

inline RunPlan plan_of(const Case& c, const Changes& further = {}) {
  Changes all{
      "model.num_layers=4",        "model.hidden_size=64",     "model.num_attention_heads=4",
      "model.num_query_groups=2",  "model.ffn_hidden_size=96", "dataset.seq_length=32",
      "dataset.train=unused",      "train.run_dir=unused",     "train.steps=20",
      "train.global_batch_size=8", "train.micro_batch_size=2", "mixed_precision=fp32",
      "debug.deterministic=true"};
  all.insert(all.end(), c.more.begin(), c.more.end());
  all.insert(all.end(), further.begin(), further.end());
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(interchange::model_source(), "model: {}\n", "tiny", all,
                                          diagnostics, c.ranks);
  diagnostics.throw_if_errors();
  return plan::make_plan(r, c.ranks, kVocab);
}

inline plan::Cluster cluster(int64_t domain_gpus = 4, double network_gbps = 8) {
  Diagnostics diagnostics;
  const plan::Cluster c = plan::read_cluster_text(
      fmt::format("gpu: {{kind: cpu, memory_gib: 4, peak_tflops: {{fp32: 0.1, bf16: 0.1}}}}\n"
                  "domain: {{gpus: {}, gbps: 32}}\nnetwork: {{gbps: {}}}\nnodes: 8\n",
                  domain_gpus, network_gbps),
      "cluster.yaml", diagnostics);
  diagnostics.throw_if_errors();
  return c;
}

inline Changes with_experts(const Changes& more) {
  Changes all{"model.moe.num_experts=4", "model.moe.ffn_hidden_size=48", "model.moe.router_topk=2",
              "debug.route=balanced"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

inline const Case kFamilies[] = {
    {1, {"model.architecture=llama"}},
    {1, {"model.architecture=gpt2", "model.num_query_groups=4"}},
    {1, {"model.architecture=qwen2"}},
    {1, {"model.architecture=qwen3", "model.kv_channels=24"}},
    {1, {"model.architecture=mistral", "model.window_size=8"}},
    {1, {"model.architecture=smollm3"}},
    {1, {"model.architecture=olmo2"}},
    {1, {"model.architecture=gemma2", "model.window_size=8"}},
    {1, {"model.architecture=gemma3_text", "model.window_size=8"}},
    {1, {"model.architecture=granite"}},
    {1, {"model.norm_placement=sandwich", "model.attention_bias=true", "model.activation=gelu"}},
    {1,
     {"model.multi_latent_attention=true", "model.num_query_groups=4", "model.q_lora_rank=48",
      "model.kv_lora_rank=32", "model.qk_nope_head_dim=16", "model.qk_rope_head_dim=8",
      "model.v_head_dim=16"}},
    {1, {"model.mtp_num_layers=2"}},
    {1, with_experts({})},
    {1, with_experts({"model.moe.shared_expert_ffn_hidden_size=64",
                      "model.moe.shared_expert_gate=true", "model.moe.first_dense_layers=1",
                      "model.moe.load_balancing_type=aux_loss"})}};

// A pipeline under fsdp2 with multi-token prediction is missing: its recorded step begins with a
// count of tokens that a training has made in the step before.
inline const Case kLayouts[] = {
    {1, {"mixed_precision=bf16_mixed", "recompute=full"}},
    {1, {"recompute=selective", "recompute.modules=[core_attn,mlp,norms]"}},
    {1, {"mixed_precision=fp16_mixed", "optimizer.moments=bf16"}},
    {1, {"optimizer.name=muon"}},
    {1, {"peft.dim=4", "mixed_precision=bf16_mixed"}},
    {1,
     {"mixed_precision={name: bf16_mixed, fp8: hybrid}", "debug.emulate_fp8=true",
      "model.hidden_size=128"}},
    {1, {"packed_sequence.packed_sequence_size=32"}},
    {2, {"distributed.strategy=ddp"}},
    {4, {"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"}},
    {2, {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2"}},
    {2, {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=3"}},
    {4, {"distributed.strategy=fsdp2", "mixed_precision=bf16_mixed"}},
    {4, {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"}},
    {2, {"distributed.strategy=fsdp2", "distributed.defer_fsdp_grad_sync=false"}},
    {2, {"distributed.tp_size=2"}},
    {4, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
    {2,
     {"distributed.tp_size=2", "distributed.sequence_parallel=true",
      "comm_overlap.tp_comm_overlap=true"}},
    {2, {"distributed.cp_size=2", "distributed.cp_comm_type=p2p"}},
    {2, {"distributed.cp_size=2", "distributed.cp_comm_type=all_gather"}},
    {2, {"distributed.cp_size=2", "distributed.cp_comm_type=a2a"}},
    {4, {"distributed.cp_size=2", "distributed.tp_size=2"}},
    {2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"}},
    {4, {"distributed.pp_size=4", "distributed.pipeline.pp_schedule=1f1b"}},
    {2,
     {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=interleaved_1f1b",
      "distributed.vpp_size=2"}},
    {2, {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=zero_bubble"}},
    {8,
     {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b", "distributed.tp_size=2",
      "distributed.strategy=megatron_ddp"}},
    {2, with_experts({"distributed.ep_size=2", "distributed.strategy=megatron_ddp"})},
    {4, with_experts({"distributed.ep_size=2", "distributed.strategy=fsdp2"})},
    {2, with_experts({"distributed.ep_size=2", "model.moe.token_dispatcher=all_gather",
                      "distributed.strategy=megatron_ddp"})},
    {2, with_experts({"distributed.ep_size=2", "comm_overlap.moe_dispatch_chunks=2",
                      "distributed.strategy=megatron_ddp"})},
    {4, with_experts({"distributed.ep_size=2", "distributed.tp_size=2",
                      "distributed.sequence_parallel=true", "distributed.strategy=megatron_ddp"})},
    {4,
     with_experts({"distributed.ep_size=2", "distributed.pp_size=2",
                   "distributed.pipeline.pp_schedule=1f1b", "distributed.strategy=megatron_ddp"})}};

inline std::string describe(const Case& c) {
  return fmt::format("{} ranks: {}", c.ranks, fmt::join(c.more, " "));
}

}  // namespace predict_cases
