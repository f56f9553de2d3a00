// Compares the plan with the run: parameters, and memory by category.
#include <cctype>
#include <map>
#include <mutex>

#include <catch2/catch.hpp>

#include "comm/thread/thread_transport.h"
#include "interchange/model_source.h"
#include "plan/run_plan.h"
#include "plan_testing.h"
#include "run/dry_run.h"
#include "test/support/all_cases.h"
#include "train/build_trainer.h"

namespace parity_plan_test {

using namespace mtrain;
using namespace plan_testing;

namespace {

const std::vector<Overrides> kFamilies{
    {"model.architecture=llama"},
    {"model.architecture=llama", "model.share_embeddings_and_output_weights=true"},
    {"model.architecture=gpt2", "model.num_query_groups=4"},
    {"model.architecture=qwen2"},
    {"model.attention_bias=true", "model.activation=gelu"},
    {"model.mlp_bias=true"},
    {"model.architecture=qwen3", "model.kv_channels=48"},
    {"model.architecture=mistral", "model.window_size=64"},
    {"model.window_size=64", "model.window_attn_skip_freq=2", "model.rotary_base_local=100",
     "model.no_rope_freq=3", "model.attn_logit_softcapping=30"},
    {"model.norm_placement=post", "model.qk_layernorm=true", "model.qk_layernorm_all_heads=true"},
    {"model.multi_latent_attention=true", "model.num_query_groups=4", "model.q_lora_rank=96",
     "model.kv_lora_rank=64", "model.qk_nope_head_dim=32", "model.qk_rope_head_dim=16",
     "model.v_head_dim=32"},
    {"model.norm_placement=sandwich", "model.layernorm_zero_centered_gamma=true",
     "model.qk_layernorm=true"},
    {"model.mtp_num_layers=2"},
    {"model.mtp_num_layers=3", "model.mtp_use_repeated_layer=true",
     "model.share_embeddings_and_output_weights=true"},
    {"model.norm_placement=sandwich", "model.architecture=gpt2", "model.num_query_groups=4"},
    {"model.architecture=smollm3"},
    {"model.architecture=olmo2"},
    {"model.architecture=gemma2", "model.window_size=64"},
    {"model.architecture=gemma3_text", "model.window_size=64"},
    {"model.architecture=granite"}};

// Latent attention whose heads are much wider than its latents.
Overrides wide_latent(const Overrides& more) {
  Overrides set{
      "model.multi_latent_attention=true", "model.num_query_groups=4",  "model.kv_lora_rank=32",
      "model.qk_nope_head_dim=96",         "model.qk_rope_head_dim=32", "model.v_head_dim=96",
      "model.ffn_hidden_size=128",         "recompute=selective"};
  set.insert(set.end(), more.begin(), more.end());
  return set;
}

const std::vector<Overrides> kMemoryCases{
    wide_latent({"recompute.modules=[mla_up_proj]"}),
    wide_latent(
        {"recompute.modules=[mla_up_proj]", "model.q_lora_rank=48", "mixed_precision=bf16_mixed"}),
    wide_latent({"recompute.modules=[mla_up_proj,core_attn,mlp]", "model.q_lora_rank=48"}),
    wide_latent({"recompute.modules=[core_attn]", "model.q_lora_rank=48"}),
    {"mixed_precision=bf16_mixed"},
    {"mixed_precision=fp16_mixed"},
    {"recompute=full"},
    {"recompute=full", "model.mtp_num_layers=2"},
    {"mixed_precision=bf16_mixed", "model.mtp_num_layers=1", "model.moe.num_experts=8",
     "model.moe.ffn_hidden_size=192"},
    {"recompute=full", "recompute.num_layers=2"},
    {"recompute=full", "recompute.method=block", "recompute.num_layers=4"},
    {"recompute=selective"},
    {"recompute=selective", "recompute.modules=[mlp]"},
    {"recompute=selective", "recompute.modules=[mlp]", "model.architecture=gpt2",
     "model.num_query_groups=4"},
    {"recompute=selective", "recompute.modules=[core_attn,mlp,norms]"},
    {"recompute=selective", "recompute.modules=[core_attn]", "model.architecture=qwen3"},
    {"recompute=selective", "recompute.modules=[core_attn,norms]", "model.architecture=qwen3"},
    {"recompute=selective", "recompute.modules=[core_attn,mlp,norms]", "model.architecture=qwen3",
     "mixed_precision=bf16_mixed"},
    {"recompute=full", "mixed_precision=bf16_mixed", "train.micro_batch_size=2"},
    {"optimizer.moments=bf16"},
    {"optimizer.name=muon"},
    {"optimizer.name=muon", "model.mtp_num_layers=2"},
    {"optimizer.name=muon", "model.mtp_num_layers=1", "model.ffn_hidden_size=192"},
    {"peft.dim=8"},
    {"peft.dim=8", "mixed_precision=bf16_mixed"},
    {"peft.dim=4", "peft.target_modules=[q_proj,v_proj]", "mixed_precision=bf16_mixed",
     "recompute=full"},
    {"optimizer.name=muon", "mixed_precision=bf16_mixed", "recompute=full"},
    {"optimizer.moments=bf16", "mixed_precision=bf16_mixed", "optimizer.master_weights=false"},
    {"model.activation=geglu", "model.embedding_multiplier=16", "model.final_logit_softcapping=30",
     "model.share_embeddings_and_output_weights=true"},
    {"recompute.cheap=false"},
    {"recompute.cheap=false", "mixed_precision=bf16_mixed"},
    {"recompute.cheap=false", "model.architecture=gpt2", "model.num_query_groups=4"},
    {"recompute.cheap=false", "model.architecture=qwen3"},
    {"recompute.cheap=false", "recompute=full", "recompute.num_layers=2"},
    {"recompute.cheap=false", "recompute=selective", "recompute.modules=[core_attn,mlp]"},
    {"recompute.cheap=false", "recompute=selective", "recompute.modules=[layernorm]"},
    {"model.moe.num_experts=8", "model.moe.ffn_hidden_size=192"},
    {"model.moe.num_experts=8", "model.moe.ffn_hidden_size=96", "model.moe.router_topk=3",
     "model.moe.shared_expert_ffn_hidden_size=128", "model.moe.shared_expert_gate=true",
     "recompute.cheap=false"},
    {"model.moe.num_experts=8", "mixed_precision=bf16_mixed", "recompute=full"},
    {"model.norm_placement=post", "recompute.cheap=false"},
    {"model.norm_placement=sandwich", "recompute.cheap=false"},
    {"model.norm_placement=post", "recompute=selective", "recompute.modules=[core_attn,mlp,norms]",
     "mixed_precision=bf16_mixed"},
    {"model.norm_placement=sandwich", "recompute=full", "mixed_precision=bf16_mixed"},
    {"model.norm_placement=sandwich", "model.moe.num_experts=8", "model.moe.ffn_hidden_size=192"},
    {"model.moe.num_experts=8", "model.moe.ffn_hidden_size=192",
     "mixed_precision={name: bf16_mixed, fp8: hybrid}", "debug.emulate_fp8=true"},
    {"model.moe.num_experts=8", "model.moe.ffn_hidden_size=192", "recompute.cheap=false",
     "mixed_precision={name: bf16_mixed, fp8: hybrid}", "debug.emulate_fp8=true"},
    {"model.moe.num_experts=8", "model.moe.ffn_hidden_size=192", "recompute=selective",
     "recompute.modules=[moe]"},
    {"model.moe.num_experts=8", "model.moe.ffn_hidden_size=96", "model.moe.router_topk=3",
     "model.moe.shared_expert_ffn_hidden_size=128", "model.moe.shared_expert_gate=true",
     "recompute.cheap=false", "recompute=selective", "recompute.modules=[moe_act,shared_experts]"},
    {"model.hidden_size=64", "model.vocab_size=40000", "dataset.seq_length=512"},
    {"model.hidden_size=64", "model.vocab_size=40000", "dataset.seq_length=512",
     "distributed.mp_policy.output_dtype=bf16"},
    {"model.num_layers=2", "model.hidden_size=512", "dataset.seq_length=64"}};

}  // namespace

TEST_CASE("counted parameters are those the model declares") {
  std::vector<Overrides> families = kFamilies;
  families.push_back({"model.moe.num_experts=8", "model.moe.ffn_hidden_size=96",
                      "model.moe.shared_expert_ffn_hidden_size=64",
                      "model.moe.shared_expert_gate=true", "model.moe.first_dense_layers=1"});
  families.push_back({"model.moe.num_experts=4", "model.moe.layer_freq=2"});
  families.push_back({"model.moe.num_experts=4", "model.norm_placement=sandwich"});
  families.push_back({"model.moe.num_experts=4", "model.moe.sparse_step=2"});
  for (const auto& family : families) {
    const Recipe r = recipe_with(family);
    CAPTURE(family[0]);
    const auto device = Device::cpu(1, {});
    model::ParamStore params;
    const RunPlan plan = plan::make_plan(r, 1, kVocab);
    const int64_t padded = plan::padded_vocab(kVocab, 1);
    const model::Gpt model(device->stream(device::StreamKind::compute), params, plan.model,
                           r.dataset.seq_length, {}, {.padded_vocab = padded});
    double declared = 0;
    for (const model::Parameter* p : params.params()) declared += double(p->shape.count());
    CHECK(plan::count_parameters(plan.model, padded).total() == declared);
  }
}

// The required bound is 10 %: the formula ignores the padding of flat buffers, cu_seqlens,
// positions and statistics of the norm.
TEST_CASE("planned memory is within 10 % of a step's peak, by category and in all") {
  std::vector<Overrides> cases = kFamilies;
  cases.insert(cases.end(), kMemoryCases.begin(), kMemoryCases.end());
  for (const Overrides& c : cases) {
    std::string what;
    for (const auto& o : c) what += o + " ";
    CAPTURE(what);
    const Recipe r = recipe_with(c);
    const int64_t vocab = r.model.vocab_size ? r.model.vocab_size : kVocab;
    const plan::MemoryEstimate planned = plan::make_plan(r, 1, vocab).fullest();
    const auto device = Device::cpu(2, {});
    train::Trainer trainer =
        train::build_trainer(*device, plan::make_plan(r, 1, vocab),
                             std::make_shared<RepeatedToken>(r.dataset.seq_length));
    trainer.step();
    trainer.step();
    const auto peak = [&](device::MemoryCategory category) {
      return double(device->allocator().usage(category).peak);
    };
    CHECK(planned.params == Approx(peak(device::MemoryCategory::params)).epsilon(0.1));
    CHECK(planned.grads == Approx(peak(device::MemoryCategory::grads)).epsilon(0.1));
    CHECK(planned.optimizer == Approx(peak(device::MemoryCategory::optimizer)).epsilon(0.1));
    CHECK(planned.activations + planned.logits ==
          Approx(peak(device::MemoryCategory::activations)).epsilon(0.1));
    CHECK(planned.total() == Approx(double(device->allocator().total().peak)).epsilon(0.1));
  }
}

TEST_CASE("planned memory of every strategy is within 10 % of a rank's step") {
  // Wide enough that padding to the ranks matters little.
  const Overrides base{"model.hidden_size=192", "train.global_batch_size=8",
                       "train.micro_batch_size=1", "dataset.seq_length=128"};
  const auto fsdp = [](int zero) {
    return Overrides{"distributed.strategy=megatron_fsdp",
                     fmt::format("distributed.zero_dp_strategy={}", zero)};
  };
  size_t number = 0;
  for (const Overrides& strategy :
       {Overrides{"distributed.strategy=ddp"},
        {"distributed.strategy=megatron_ddp"},
        fsdp(2),
        fsdp(3),
        {"distributed.strategy=fsdp2"},
        {"distributed.strategy=fsdp2", "recompute=full", "recompute.num_layers=4"},
        {"distributed.strategy=fsdp2", "distributed.defer_fsdp_grad_sync=false",
         "distributed.reshard_after_forward=false"},
        {"distributed.strategy=megatron_ddp", "model.moe.num_experts=4",
         "model.moe.ffn_hidden_size=256"},
        {"distributed.strategy=fsdp2", "model.moe.num_experts=4", "model.moe.ffn_hidden_size=256"},
        {"distributed.strategy=fsdp2", "model.moe.num_experts=4", "model.moe.ffn_hidden_size=256",
         "distributed.defer_fsdp_grad_sync=false"},
        {"distributed.strategy=fsdp2", "optimizer.name=muon"},
        {"distributed.strategy=ddp", "optimizer.name=muon", "model.moe.num_experts=4",
         "model.moe.ffn_hidden_size=256"}}) {
    ++number;
    for (const char* precision : {"fp32", "bf16_mixed"})
      for (const size_t doublings : {1, 2, 3}) {
        if (!in_turn(number, 2 * (doublings - 1) + (*precision == 'b'), 6)) continue;
        const int ranks = 1 << doublings;
        Overrides all = base;
        all.insert(all.end(), strategy.begin(), strategy.end());
        all.push_back(fmt::format("mixed_precision={}", precision));
        const Recipe r = recipe_with(all, ranks);
        const plan::MemoryEstimate planned = plan::make_plan(r, ranks, kVocab).fullest();
        std::vector<device::MemoryUsage> peaks(device::kMemoryCategories);
        device::MemoryUsage total;
        comm::run_thread_ranks(ranks, [&](comm::World& world) {
          const auto device = Device::cpu(1, {});
          train::Trainer trainer =
              train::build_trainer(*device, plan::make_plan(r, world.size(), kVocab),
                                   std::make_shared<RepeatedToken>(r.dataset.seq_length), world);
          trainer.step();
          trainer.step();
          if (world.rank() != 0) return;
          for (int i = 0; i < device::kMemoryCategories; ++i)
            peaks[size_t(i)] = device->allocator().usage(device::MemoryCategory(i));
          total = device->allocator().total();
        });
        const auto peak = [&](device::MemoryCategory c) { return double(peaks[size_t(c)].peak); };
        CAPTURE(strategy, precision, ranks, planned.buffers, peak(device::MemoryCategory::buffers));
        CHECK(planned.params == Approx(peak(device::MemoryCategory::params)).epsilon(0.1));
        CHECK(planned.grads == Approx(peak(device::MemoryCategory::grads)).epsilon(0.1));
        CHECK(planned.optimizer == Approx(peak(device::MemoryCategory::optimizer)).epsilon(0.1));
        CHECK(planned.total() == Approx(double(total.peak)).epsilon(0.1));
      }
  }
}

TEST_CASE("planned memory of every type of context parallelism is within 10 % of a rank's") {
  const Overrides base{
      "model.hidden_size=192",     "model.num_query_groups=4",
      "train.global_batch_size=2", "train.micro_batch_size=1",
      "dataset.seq_length=512",    "distributed.strategy=megatron_ddp",
      "distributed.cp_size=4",     "distributed.hierarchical_context_parallel_sizes=[2,2]"};
  std::map<std::string, double> kept;
  for (const char* type : {"p2p", "all_gather", "a2a", "a2a+p2p", "[p2p,p2p,a2a,a2a,p2p,a2a]"})
    for (const char* precision : {"fp32", "bf16_mixed"}) {
      Overrides all = base;
      all.push_back(fmt::format("distributed.cp_comm_type={}", type));
      all.push_back(fmt::format("mixed_precision={}", precision));
      const Recipe r = recipe_with(all, 4);
      const plan::MemoryEstimate planned = plan::make_plan(r, 4, kVocab).fullest();
      device::MemoryUsage total, activations, buffers;
      comm::run_thread_ranks(4, [&](comm::World& world) {
        const auto device = Device::cpu(1, {});
        train::Trainer trainer =
            train::build_trainer(*device, plan::make_plan(r, world.size(), kVocab),
                                 std::make_shared<RepeatedToken>(r.dataset.seq_length), world);
        trainer.step();
        trainer.step();
        if (world.rank() != 0) return;
        activations = device->allocator().usage(device::MemoryCategory::activations);
        buffers = device->allocator().usage(device::MemoryCategory::buffers);
        total = device->allocator().total();
      });
      if (precision == std::string("fp32")) kept[type] = double(activations.peak);
      CAPTURE(type, precision, planned.buffers, buffers.peak);
      CHECK(planned.activations + planned.logits == Approx(double(activations.peak)).epsilon(0.1));
      CHECK(planned.total() == Approx(double(total.peak)).epsilon(0.1));
    }
  // The exchanged heads are kept instead of a rank's own; only outputs are kept in both forms.
  for (const char* type : {"a2a", "a2a+p2p"}) {
    CAPTURE(type);
    CHECK(kept[type] - kept["p2p"] == Approx(6 * (512 / 4) * 192 * 4).epsilon(0.02));
  }
}

TEST_CASE("planned memory of several packs at once is within 10 % of a rank's step") {
  struct Case {
    int ranks;
    Overrides more;
  };
  for (const Case& c :
       std::vector<Case>{{1, {}},
                         {1, {"mixed_precision=bf16_mixed", "recompute=full"}},
                         {2, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
                         {2, {"distributed.cp_size=2", "distributed.cp_comm_type=p2p"}},
                         {2, {"distributed.cp_size=2", "distributed.cp_comm_type=a2a"}}}) {
    Overrides all{"model.hidden_size=192",
                  "model.num_query_groups=4",
                  "train.global_batch_size=8",
                  "train.micro_batch_size=4",
                  "packed_sequence.packed_sequence_size=128",
                  "distributed.strategy=megatron_ddp"};
    all.insert(all.end(), c.more.begin(), c.more.end());
    const Recipe r = recipe_with(all, c.ranks);
    const plan::MemoryEstimate planned = plan::make_plan(r, c.ranks, kVocab).fullest();
    device::MemoryUsage total, activations;
    comm::run_thread_ranks(c.ranks, [&](comm::World& world) {
      const auto device = Device::cpu(1, {});
      train::Trainer trainer =
          train::build_trainer(*device, plan::make_plan(r, world.size(), kVocab),
                               std::make_shared<RepeatedToken>(128, 4), world);
      trainer.step();
      trainer.step();
      if (world.rank() != 0) return;
      activations = device->allocator().usage(device::MemoryCategory::activations);
      total = device->allocator().total();
    });
    CAPTURE(c.ranks, c.more);
    CHECK(planned.activations + planned.logits == Approx(double(activations.peak)).epsilon(0.1));
    CHECK(planned.total() == Approx(double(total.peak)).epsilon(0.1));
  }
}

TEST_CASE("planned memory of every stage of a pipeline is within 10 % of its step") {
  struct Case {
    const char* schedule;
    int pp, stages;
    Overrides more = {};
  };
  const Overrides delayed{"comm_overlap.overlap_p2p_wgrad_delayed_layer_number=2",
                          "comm_overlap.overlap_p2p_with_transformer_layer_wgrad=true"};
  for (const Case& c : std::vector<Case>{
           {"1f1b", 4, 1},
           {"gpipe", 2, 1},
           {"1f1b", 2, 1, {"model.mtp_num_layers=2"}},
           {"interleaved_1f1b", 2, 2, {"model.mtp_num_layers=1"}},
           {"1f1b",
            4,
            1,
            {"model.mtp_num_layers=2", "distributed.pipeline.layout='Et*8|t*8|mm|L'"}},
           {"zero_bubble", 2, 1},
           {"zero_bubble", 4, 1},
           {"zero_bubble", 2, 2},
           {"zero_bubble", 2, 1, {"recompute=full"}},
           {"zero_bubble", 2, 1, {"recompute=selective", "recompute.modules=[core_attn,mlp]"}},
           {"1f1b", 4, 1, {"recompute=selective", "recompute.modules=[mlp]"}},
           {"1f1b",
            2,
            1,
            {"distributed.tp_size=2", "distributed.sequence_parallel=true", "recompute=selective",
             "recompute.modules=[core_attn,mlp]"}},
           {"zero_bubble", 4, 1, {"mixed_precision=bf16_mixed"}},
           {"zero_bubble", 2, 1, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
           {"v_schedule", 4, 2},
           {"dualpipev", 2, 2},
           {"looped_bfs", 2, 2},
           {"interleaved_1f1b", 4, 2},
           {"interleaved_1f1b", 2, 2, delayed},
           {"interleaved_1f1b", 2, 2, {"comm_overlap.overlap_p2p_comm=false"}}}) {
    Overrides all{"model.num_layers=16",
                  "model.hidden_size=192",
                  "dataset.seq_length=256",
                  "train.global_batch_size=8",
                  "train.micro_batch_size=1",
                  "distributed.strategy=megatron_ddp",
                  fmt::format("distributed.pp_size={}", c.pp),
                  fmt::format("distributed.vpp_size={}", c.stages),
                  fmt::format("distributed.pipeline.pp_schedule={}", c.schedule)};
    all.insert(all.end(), c.more.begin(), c.more.end());
    const bool tensor = std::ranges::count(c.more, "distributed.tp_size=2") > 0;
    const int ranks = c.pp * (tensor ? 2 : 1);
    const Recipe r = recipe_with(all, ranks);
    const plan::Layout l = plan::layout_of(r, ranks);
    std::vector<double> activations(static_cast<size_t>(ranks)), totals = activations;
    comm::run_thread_ranks(ranks, [&](comm::World& world) {
      const auto device = Device::cpu(1, {});
      train::Trainer trainer =
          train::build_trainer(*device, plan::make_plan(r, world.size(), kVocab),
                               std::make_shared<RepeatedToken>(r.dataset.seq_length), world);
      trainer.step();
      trainer.step();
      const auto rank = size_t(world.rank());
      activations[rank] =
          double(device->allocator().usage(device::MemoryCategory::activations).peak);
      totals[rank] = double(device->allocator().total().peak);
    });
    for (int64_t stage = 0; stage < c.pp; ++stage) {
      const plan::MemoryEstimate planned =
          plan::make_plan(r, l.world, kVocab).memory[size_t(stage)];
      const auto rank = size_t(stage * l.tp);
      CAPTURE(c.schedule, c.pp, c.stages, c.more, stage, planned.activations, planned.logits,
              activations[rank]);
      CHECK(planned.total() == Approx(totals[rank]).epsilon(0.1));
    }
  }
}

TEST_CASE("planned memory of tensor parallelism is within 10 % of a rank's step") {
  const std::string latent = "model.multi_latent_attention=true";
  for (const std::string& family :
       {std::string("model.architecture=llama"), std::string("model.architecture=gpt2"), latent})
    for (const int tp : {2, 4})
      for (const bool sequence : {false, true})
        for (const char* precision : {"fp32", "bf16_mixed"}) {
          if (sequence != (family == "model.architecture=llama") && tp == 2) continue;
          // Two heads of keys and values for four ranks.
          const int kv = tp == 4 && family == "model.architecture=llama" ? 2 : 4;
          Overrides changes{family,
                            fmt::format("model.num_query_groups={}", kv),
                            "model.hidden_size=192",
                            fmt::format("mixed_precision={}", precision),
                            fmt::format("distributed.tp_size={}", tp),
                            fmt::format("distributed.sequence_parallel={}", sequence)};
          if (family == latent)
            changes.insert(changes.end(), {"model.q_lora_rank=48", "model.kv_lora_rank=32",
                                           "model.qk_nope_head_dim=32", "model.qk_rope_head_dim=16",
                                           "model.v_head_dim=32"});
          const Recipe r = recipe_with(changes, tp);
          const plan::MemoryEstimate planned = plan::make_plan(r, tp, kVocab).fullest();
          device::MemoryUsage total, params, activations;
          comm::run_thread_ranks(tp, [&](comm::World& world) {
            const auto device = Device::cpu(1, {});
            train::Trainer trainer =
                train::build_trainer(*device, plan::make_plan(r, world.size(), kVocab),
                                     std::make_shared<RepeatedToken>(r.dataset.seq_length), world);
            trainer.step();
            trainer.step();
            if (world.rank() != 0) return;
            total = device->allocator().total();
            params = device->allocator().usage(device::MemoryCategory::params);
            activations = device->allocator().usage(device::MemoryCategory::activations);
          });
          CAPTURE(family, tp, sequence, precision, planned.activations, planned.logits,
                  planned.buffers);
          CHECK(planned.params == Approx(double(params.peak)).epsilon(0.1));
          CHECK(planned.activations + planned.logits ==
                Approx(double(activations.peak)).epsilon(0.1));
          CHECK(planned.total() == Approx(double(total.peak)).epsilon(0.1));
        }
}

namespace {

const Overrides kFloat8{"mixed_precision={name: bf16_mixed, fp8: hybrid}",
                        "debug.emulate_fp8=true",
                        "model.hidden_size=256",
                        "model.num_query_groups=4",
                        "dataset.seq_length=64",
                        "distributed.strategy=megatron_ddp"};
struct KeptWeights {
  int ranks;
  Overrides more;
  double bytes;  // per element of the linears
};
const std::vector<KeptWeights> kKeptWeights{
    {1, {}, 0},
    {1, {"recompute=full"}, 1},
    {1, {"train.micro_batch_size=1"}, 2},
    {1, {"train.micro_batch_size=1", "mixed_precision.fp8_recipe=mxfp8"}, 2 * (1 + 1.0 / 32)},
    // Two of four layers keep bf16.
    {1,
     {"train.micro_batch_size=1", "mixed_precision.first_last_layers_bf16=true",
      "model.num_layers=4"},
     1},
    {2, {"train.micro_batch_size=1", "distributed.tp_size=2"}, 2},
    {2,
     {"train.micro_batch_size=1", "distributed.tp_size=2", "distributed.sequence_parallel=true"},
     2},
    {2, {"train.micro_batch_size=1", "distributed.pp_size=2", "distributed.pipeline={}"}, 2},
    // Gradients wait for their weight gradients in 8 bits, not in bf16; but with biases.
    {2,
     {"train.micro_batch_size=1", "distributed.pp_size=2", "distributed.vpp_size=1",
      "distributed.pipeline.pp_schedule=zero_bubble"},
     2},
    {2,
     {"train.micro_batch_size=1", "distributed.pp_size=2", "distributed.vpp_size=1",
      "distributed.pipeline.pp_schedule=zero_bubble", "model.architecture=gpt2"},
     2},
    // proj's and fc2's gradients are multiplied in chunks, and wait in bf16.
    {4,
     {"train.micro_batch_size=1", "dataset.seq_length=256", "distributed.pp_size=2",
      "distributed.vpp_size=1", "distributed.tp_size=2", "distributed.sequence_parallel=true",
      "comm_overlap.tp_comm_overlap=true", "distributed.pipeline.pp_schedule=zero_bubble"},
     2},
    {2, {"train.micro_batch_size=1", "distributed.strategy=fsdp2"}, 0},
    // Experts have one copy for forward and backward.
    {1,
     {"train.micro_batch_size=1", "model.moe.num_experts=4", "model.moe.first_dense_layers=1",
      "model.moe.shared_expert_ffn_hidden_size=128"},
     2}};

}  // namespace

TEST_CASE("planned memory has the 8-bit weights that are kept") {
  for (const KeptWeights& c : kKeptWeights) {
    Overrides all = kFloat8;
    all.insert(all.end(), c.more.begin(), c.more.end());
    const Recipe r = recipe_with(all, c.ranks);
    Overrides without = all;
    without[0] = "mixed_precision=bf16_mixed";
    without.erase(without.begin() + 1);  // emulation
    std::erase_if(without, [](const std::string& o) { return o.starts_with("mixed_precision."); });
    const Recipe plain = recipe_with(without, c.ranks);
    const plan::Layout l = plan::layout_of(r, c.ranks);
    const plan::MemoryEstimate planned = plan::make_plan(r, l.world, kVocab).memory[0];
    double linears = 0, experts = 0, kept = 0, activations = 0, total = 0;
    comm::run_thread_ranks(c.ranks, [&](comm::World& world) {
      const auto device = Device::cpu(1, {});
      train::Trainer trainer =
          train::build_trainer(*device, plan::make_plan(r, world.size(), kVocab),
                               std::make_shared<RepeatedToken>(r.dataset.seq_length), world);
      trainer.step();
      trainer.step();
      if (world.rank() != 0) return;
      for (const model::Parameter* p : trainer.params().params())
        if (p->shape.rank() == 3)
          experts += double(p->shape.count());
        else if (p->shape.rank() == 2 && p->name.starts_with("layers") &&
                 !p->name.ends_with("router.weight"))
          linears += double(p->shape.count());
      kept = double(device->allocator().usage(device::MemoryCategory::buffers).current);
      activations = double(device->allocator().usage(device::MemoryCategory::activations).peak);
      total = double(device->allocator().total().peak);
    });
    const double bytes = c.bytes * linears + (c.bytes > 0 ? experts : 0);
    CAPTURE(c.ranks, c.more, planned.buffers, linears, experts, kept, total);
    CHECK(planned.activations + planned.logits == Approx(activations).epsilon(0.1));
    CHECK(planned.buffers - plan::make_plan(plain, l.world, kVocab).memory[0].buffers ==
          Approx(bytes).epsilon(0.01));
    // Scales and other small buffers.
    if (c.bytes > 0) CHECK(kept == Approx(bytes).epsilon(0.05));
    CHECK(planned.total() == Approx(total).epsilon(0.1));
  }
}

TEST_CASE("a step of many micro-batches takes no more memory from the system than one of few") {
  for (const char* layout : {"distributed.tp_size=2", "distributed.cp_size=2"}) {
    int64_t reserved[2] = {};
    for (const int micro_batches : {2, 12}) {
      const Recipe r = recipe_with(
          {"model.num_query_groups=4", "model.hidden_size=192", "train.micro_batch_size=1",
           "dataset.seq_length=512", fmt::format("train.global_batch_size={}", micro_batches),
           layout, "distributed.sequence_parallel=true", "distributed.strategy=megatron_ddp"},
          2);
      comm::run_thread_ranks(2, [&](comm::World& world) {
        const auto device = Device::cpu(1, {});
        train::Trainer trainer =
            train::build_trainer(*device, plan::make_plan(r, world.size(), kVocab),
                                 std::make_shared<RepeatedToken>(r.dataset.seq_length), world);
        trainer.step();
        if (world.rank() == 0) reserved[micro_batches > 2] = device->allocator().reserved().peak;
      });
    }
    CAPTURE(layout, reserved[0], reserved[1]);
    CHECK(double(reserved[1]) <= 1.1 * double(reserved[0]));
  }
}

TEST_CASE("a dry run for a GPU names the kernels' workspace, one for CPUs does not") {
  for (const char* device : {"cpu", "cuda"}) {
    CAPTURE(device);
    const Recipe r =
        recipe_with({"mixed_precision=bf16_mixed", fmt::format("train.device={}", device)});
    const std::string report = run::dry_run_report(plan::make_plan(r, 1, kVocab), {.width = 200});
    const bool gpu = r.train.device == recipe::DeviceChoice::cuda;
    const auto has = [&](const char* text) { return report.find(text) != std::string::npos; };
    CHECK(has("workspace 32.0 MiB") == gpu);
    CHECK(has("buffers  workspace     total") == gpu);
    CHECK(has("workspace") == gpu);
    CHECK(has("buffers     total") == !gpu);
  }
}

TEST_CASE("a dry run names a benchmark's routing") {
  const auto report = [](const char* set) {
    return run::dry_run_report(
        plan::make_plan(recipe_with({"model.moe.num_experts=4", set}), 1, kVocab), {.width = 200});
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(report("debug.route=balanced"), Contains("in equal numbers to all experts"));
  CHECK_THAT(report("debug.route=zipf"), Contains("loads of 1, 1/2, 1/3"));
  CHECK_THAT(report("train.seed=2"), !Contains("trains nothing useful"));
}

TEST_CASE("a dry run names layout, groups, memory, pipeline and overlap, for any world") {
  for (const auto& [name, world] : {std::pair{"quickstart", 1},
                                    {"llama3_70b", 256},
                                    {"llama3_1_405b", 16384},
                                    {"moe_16b_shared_expert", 32},
                                    {"deepseek_v3", 2048},
                                    {"mixtral_8x7b", 64}}) {
    CAPTURE(name);
    Diagnostics diagnostics;
    const Recipe r = plan::load_recipe(interchange::model_source(),
                                       std::string(MTRAIN_SOURCE_DIR "/recipes/") + name + ".yaml",
                                       {}, diagnostics, world);
    diagnostics.throw_if_errors();
    const int64_t vocab = std::max<int64_t>(r.model.vocab_size, 257);
    std::string report;  // one line, since rows wrap
    for (const char c : run::dry_run_report(plan::make_plan(r, world, vocab), {.width = 200})) {
      if (!std::isspace(static_cast<unsigned char>(c)))
        report += c;
      else if (!report.ends_with(' '))
        report += ' ';
    }
    const auto has = [&](const char* text) { return report.find(text) != std::string::npos; };
    CHECK(has(fmt::format("dry run on {} rank", world).c_str()));
    CHECK(has("FLOPs per token"));
    CHECK(has("tokens a step"));
    CHECK(has("ddp.overlap_grad_reduce"));
    CHECK(has("activations"));
    CHECK(has("idle") == (r.distributed.pp_size > 1));
    CHECK(has("rank 0's") == (world > 1));
    CHECK(has("ep_shard") == (r.distributed.ep_size > 1));
    CHECK(has("a step over ep") == (r.distributed.ep_size > 1));
    CHECK(has("more for each 10 %") == (r.distributed.ep_size > 1));
    CHECK(has("model.moe.token_dispatcher: alltoall") == (r.distributed.ep_size > 1));
  }
}

}  // namespace parity_plan_test
