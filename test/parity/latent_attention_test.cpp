// Compares layouts of models with latent attention with a single rank: losses, norms and the
// gradients of the first step. Runs under the stream sanitizer.
#include <catch2/catch.hpp>

#include "test/support/comm_testing.h"
#include "test/support/train_testing.h"
#include "train_pieces.h"
#include "train_ranks.h"

namespace parity_latent_attention_test {

using namespace mtrain;
using namespace train_testing;

namespace {

// Keys of 12 elements, 4 of them rotated, and values of 6.
const Changes kLatent{"model.num_layers=4",
                      "model.hidden_size=64",
                      "model.num_attention_heads=8",
                      "model.num_query_groups=8",
                      "model.multi_latent_attention=true",
                      "model.kv_lora_rank=24",
                      "model.qk_nope_head_dim=8",
                      "model.qk_rope_head_dim=4",
                      "model.v_head_dim=6",
                      "model.init_method_std=0.1",
                      "train.global_batch_size=8",
                      "train.micro_batch_size=2",
                      "optimizer.lr=3e-3"};

struct Model {
  const char* name;
  Changes changes;
  bool experts = false;
};
const std::vector<Model> kModels{
    {"queries from a latent", {"model.q_lora_rank=20"}},
    {"queries from the hidden state, yarn",
     {"model.rope_scaling=yarn", "model.rope_scaling.factor=4",
      "model.rope_scaling.original_max_position_embeddings=8", "model.rope_scaling.mscale=0.7",
      "model.rope_scaling.mscale_all_dim=0.9"}},
    {"experts",
     {"model.q_lora_rank=20", "model.moe.num_experts=4", "model.moe.ffn_hidden_size=32",
      "model.moe.first_dense_layers=1", "model.moe.shared_expert_ffn_hidden_size=32"},
     true}};

struct Layout {
  const char* name;
  int ranks;
  Changes changes;
  bool experts = false;  // only for models with experts
};
const std::vector<Layout> kLayouts{
    {"tp 2", 2, {"distributed.tp_size=2"}},
    {"tp 4 sp", 4, {"distributed.tp_size=4", "distributed.sequence_parallel=true"}},
    {"tp 2 sp, GEMMs in chunks",
     2,
     {"distributed.tp_size=2", "distributed.sequence_parallel=true",
      "comm_overlap.tp_comm_overlap=true"}},
    {"pp 2", 2, {"distributed.pp_size=2", "distributed.pipeline={}"}},
    {"pp 2 zero bubble",
     2,
     {"distributed.pp_size=2", "distributed.pipeline={pp_schedule: zero_bubble}"}},
    {"fsdp2 4", 4, {"distributed.strategy=fsdp2"}},
    {"megatron_fsdp 2", 2, {"distributed.strategy=megatron_fsdp"}},
    {"fsdp2 2, tp 2 sp",
     4,
     {"distributed.strategy=fsdp2", "distributed.tp_size=2", "distributed.sequence_parallel=true"}},
    {"cp 2 p2p", 2, {"distributed.cp_size=2"}},
    {"cp 2 all_gather", 2, {"distributed.cp_size=2", "distributed.cp_comm_type=all_gather"}},
    {"cp 4 a2a", 4, {"distributed.cp_size=4", "distributed.cp_comm_type=a2a"}},
    {"cp 4 a2a+p2p",
     4,
     {"distributed.cp_size=4", "distributed.cp_comm_type=a2a+p2p",
      "distributed.hierarchical_context_parallel_sizes=[2,2]"}},
    {"tp 2 sp, cp 2",
     4,
     {"distributed.tp_size=2", "distributed.sequence_parallel=true", "distributed.cp_size=2"}},
    {"recompute all", 1, {"recompute=full"}},
    {"recompute the core, tp 2",
     2,
     {"recompute=selective", "recompute.modules=[core_attn, layernorm]", "distributed.tp_size=2"}},
    {"tp 2 sp, pp 2, recompute norms and MLPs",
     4,
     {"distributed.tp_size=2", "distributed.sequence_parallel=true", "distributed.pp_size=2",
      "distributed.pipeline={}", "recompute=selective", "recompute.modules=[layernorm, mlp]"}},
    {"pp 2 interleaved",
     2,
     {"distributed.pp_size=2", "distributed.vpp_size=2",
      "distributed.pipeline={pp_schedule: interleaved_1f1b}"}},
    {"pp 2 dualpipev",
     2,
     {"distributed.pp_size=2", "distributed.vpp_size=2",
      "distributed.pipeline={pp_schedule: dualpipev}"}},
    {"recompute the heads", 1, {"recompute=selective", "recompute.modules=[mla_up_proj]"}},
    {"recompute heads and core, tp 2 sp",
     2,
     {"recompute=selective", "recompute.modules=[mla_up_proj, core_attn, layernorm]",
      "distributed.tp_size=2", "distributed.sequence_parallel=true"}},
    {"recompute the heads, cp 2 all_gather",
     2,
     {"recompute=selective", "recompute.modules=[mla_up_proj]", "distributed.cp_size=2",
      "distributed.cp_comm_type=all_gather", "recompute.cheap=false"}},
    {"recompute the heads, tp 2, cp 2 p2p",
     4,
     {"recompute=selective", "recompute.modules=[mla_up_proj]", "distributed.tp_size=2",
      "distributed.cp_size=2"}},
    {"hsdp 4", 4, {"distributed.strategy=fsdp2", "distributed.dp_replicate_size=2"}},
    {"cp 2 all_gather, fsdp2",
     4,
     {"distributed.cp_size=2", "distributed.cp_comm_type=all_gather",
      "distributed.strategy=fsdp2"}},
    {"ep 2", 2, {"distributed.ep_size=2"}, true},
    {"ep 2, a forward beside a backward",
     2,
     {"distributed.ep_size=2", "comm_overlap.overlap_moe_expert_parallel_comm=true",
      "comm_overlap.delay_wgrad_compute=true"},
     true},
    {"ep 2, pp 2 interleaved, a forward beside a backward",
     4,
     {"distributed.ep_size=2", "distributed.pp_size=2", "distributed.vpp_size=2",
      "distributed.pipeline={pp_schedule: interleaved_1f1b}",
      "comm_overlap.overlap_moe_expert_parallel_comm=true", "recompute=selective",
      "recompute.modules=[moe_act, shared_experts]"},
     true},
    {"ep 2, tp 2 sp",
     4,
     {"distributed.ep_size=2", "distributed.tp_size=2", "distributed.sequence_parallel=true"},
     true}};

std::vector<Result> train_layout(int ranks, const Changes& changes, int64_t steps) {
  const Recipe r = tiny(with(kLatent, changes), ranks);
  std::vector<Result> results(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    results[size_t(rank.rank())] = train_all(r, rank.device, rank.world, steps);
  });
  return results;
}

struct FirstStep {
  Pieces gradients;  // clipped, times 1 - beta
};
std::vector<FirstStep> first_steps(int ranks, const Changes& changes) {
  const Recipe r = tiny(with(kLatent, changes), ranks);
  std::vector<FirstStep> results(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    t.step();
    results[size_t(rank.rank())].gradients = pieces(t, [&](model::ParamUnit& unit) {
      return t.data_parallel().gather_unit(unit,
                                           t.optimizer().state()[0].values.own(t.compute(), unit));
    });
  });
  return results;
}

}  // namespace

TEST_CASE("latent attention trains alike under every layout") {
  for (const Model& model : kModels) {
    const Result one = train_layout(1, model.changes, compared_steps(20))[0];
    CHECK(one.losses.back() < one.losses.front());
    for (const Layout& layout : kLayouts) {
      if (layout.experts && !model.experts) continue;
      CAPTURE(model.name, layout.name);
      const auto ranks =
          train_layout(layout.ranks, with(model.changes, layout.changes), compared_steps(20));
      // The numerics contract: losses to 1e-5 relative in fp32.
      check_close(one.losses, ranks[0].losses, 1e-5);
      check_close(one.norms, ranks[0].norms, 1e-4);
      CHECK(ranks[0].evaluation == Approx(one.evaluation).epsilon(1e-5));
      for (const Result& other : ranks) CHECK((other.losses == ranks[0].losses));
    }
  }
}

TEST_CASE("gradients of latent attention are those of one rank under every layout") {
  for (const Model& model : kModels) {
    if (model.experts) continue;
    const FirstStep one = first_steps(1, model.changes)[0];
    for (const Layout& layout : kLayouts) {
      if (layout.experts) continue;
      CAPTURE(model.name, layout.name);
      check_tensors(one, first_steps(layout.ranks, with(model.changes, layout.changes)),
                    &FirstStep::gradients, 1e-5);
    }
  }
}

TEST_CASE("recomputing the heads of latent attention changes no bit") {
  for (const Model& model : kModels)
    for (const char* modules : {"[mla_up_proj]", "[mla_up_proj, core_attn, layernorm]"}) {
      CAPTURE(model.name, modules);
      const Result kept = train_layout(1, model.changes, 3)[0],
                   recomputed = train_layout(
                       1,
                       with(model.changes,
                            {"recompute=selective", std::string("recompute.modules=") + modules}),
                       3)[0];
      CHECK((kept.losses == recomputed.losses));
      CHECK((kept.norms == recomputed.norms));
    }
}

TEST_CASE("Muon trains latent attention alike under every division of its matrices") {
  const Changes muon{"model.q_lora_rank=20", "optimizer.name=muon", "train.micro_batch_size=1"};
  const Result one = train_layout(1, muon, 8)[0];
  CHECK(one.losses.back() < one.losses.front());
  for (const Layout& layout : std::vector<Layout>{
           {"tp 4 sp", 4, {"distributed.tp_size=4", "distributed.sequence_parallel=true"}},
           {"tp 2, fsdp2", 4, {"distributed.tp_size=2", "distributed.strategy=fsdp2"}},
           {"pp 2, megatron_ddp",
            4,
            {"distributed.strategy=megatron_ddp", "distributed.pp_size=2",
             "distributed.pipeline={}"}},
           {"cp 2", 2, {"distributed.cp_size=2"}}}) {
    CAPTURE(layout.name);
    for (const Result& r : train_layout(layout.ranks, with(muon, layout.changes), 8))
      check_close(one.losses, r.losses, 1e-5);
  }
}

TEST_CASE("latent attention trains packed documents alike under context parallelism") {
  const Changes packed{"model.q_lora_rank=20", "packed_sequence.packed_sequence_size=32"};
  const Result one = train_layout(1, packed, compared_steps(20))[0];
  const auto check = [&](int ranks, const Changes& changes) {
    CAPTURE(changes);
    check_close(one.losses,
                train_layout(ranks, with(packed, changes), compared_steps(20))[0].losses, 1e-5);
  };
  for (const char* type : {"p2p", "all_gather", "a2a"})
    check(2, {"distributed.cp_size=2", fmt::format("distributed.cp_comm_type={}", type)});
  check(4, {"distributed.cp_size=4", "distributed.cp_comm_type=a2a+p2p",
            "distributed.hierarchical_context_parallel_sizes=[2,2]"});
}

TEST_CASE("latent attention in bf16 follows fp32") {
  const Changes model{"model.q_lora_rank=20"};
  const Result exact = train_layout(1, model, compared_steps(20))[0];
  const auto check = [&](int ranks, const Changes& changes) {
    CAPTURE(changes);
    const Changes bf16 = with(model, {"mixed_precision.name=bf16_mixed"});
    check_close(exact.losses,
                train_layout(ranks, with(bf16, changes), compared_steps(20))[0].losses, 2e-2);
  };
  check(1, {});
  for (const char* type : {"p2p", "all_gather", "a2a"})
    check(2, {"distributed.cp_size=2", fmt::format("distributed.cp_comm_type={}", type)});
}

}  // namespace parity_latent_attention_test
