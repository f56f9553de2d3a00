// Recomputed modules change memory, but never a bit of the results: under every layout, with weight
// gradients that run later, and in 8 bits. Runs under the stream sanitizer.
#include "train_fp8_testing.h"

namespace parity_recompute_test {

using namespace mtrain;
using namespace train_testing;

namespace {

struct Layout {
  const char* name;
  int ranks;
  Changes changes;
};

const Changes kQwen3{"model.architecture=qwen3", "model.num_query_groups=2", "model.num_layers=4",
                     "train.global_batch_size=8", "train.micro_batch_size=1"},
    kGpt2{"model.architecture=gpt2",  "model.num_query_groups=4",    "model.num_layers=4",
          "model.hidden_dropout=0.1", "model.embedding_dropout=0.1", "train.global_batch_size=8",
          "train.micro_batch_size=1"};

Changes selective(const std::string& modules) {
  return {"recompute.granularity=selective", "recompute.modules=[" + modules + "]"};
}

std::vector<Layout> layouts() {
  const Changes sequence{"distributed.tp_size=2", "distributed.sequence_parallel=true"},
      overlapped = with(sequence, {"comm_overlap.tp_comm_overlap=true",
                                   "comm_overlap.tp_comm_overlap_cfg={qkv_fprop: {method: "
                                   "ring_exchange}, fc1_fprop: {method: ring_exchange}, "
                                   "fc2_fprop: {num_splits: 2}}"});
  const auto pipeline = [](const char* schedule, int stages) {
    return Changes{"distributed.pp_size=2", fmt::format("distributed.vpp_size={}", stages),
                   fmt::format("distributed.pipeline.pp_schedule={}", schedule)};
  };
  return {{"one rank", 1, {}},
          {"sharded parameters", 2, {"distributed.strategy=fsdp2"}},
          {"tensor parallelism", 2, {"distributed.tp_size=2"}},
          {"sequence parallelism", 2, sequence},
          {"sequence parallelism with overlap", 2, overlapped},
          {"a ring of keys", 2, {"distributed.cp_size=2", "distributed.cp_comm_type=p2p"}},
          {"exchanged heads", 2, {"distributed.cp_size=2", "distributed.cp_comm_type=a2a"}},
          {"split weight gradients", 2, pipeline("zero_bubble", 1)},
          {"split weight gradients under sequence parallelism", 4,
           with(pipeline("v_schedule", 2), sequence)},
          {"delayed weight gradients", 2,
           with(pipeline("interleaved_1f1b", 2),
                {"comm_overlap.delay_wgrad_compute=true",
                 "comm_overlap.overlap_p2p_backward_on_comm_stream=true"})}};
}

// Every rank computes the same bits with the modules as without.
void expect_same_bits(const Layout& layout, const Changes& model,
                      const std::vector<const char*>& choices, int64_t steps = 3) {
  const Changes all = with(model, layout.changes);
  const auto kept = train_ranks(layout.ranks, all, steps);
  for (const char* modules : choices) {
    const auto again = train_ranks(layout.ranks, with(all, selective(modules)), steps);
    for (size_t rank = 0; rank < kept.size(); ++rank) {
      CAPTURE(layout.name, modules, rank);
      CHECK((again[rank].losses == kept[rank].losses));
      CHECK((again[rank].norms == kept[rank].norms));
      CHECK((again[rank].gradients == kept[rank].gradients));
      CHECK((again[rank].weights == kept[rank].weights));
    }
  }
}

// The peak of a step's activations.
int64_t activations(const Changes& changes) {
  const Recipe r = tiny(changes);
  const auto device = Device::cpu(1, {});
  train::Trainer t = make_trainer(*device, r, std::make_shared<CountingData>());
  t.step();
  return device->allocator().usage(device::MemoryCategory::activations).peak;
}

}  // namespace

TEST_CASE("recomputed modules give the same bits under every layout") {
  for (const Layout& layout : layouts()) {
    expect_same_bits(layout, kQwen3, {"mlp", "core_attn,layernorm", "core_attn,mlp,norms"});
    expect_same_bits(layout, with(kGpt2, {"mixed_precision.name=bf16_mixed"}), {"mlp", "layernorm"},
                     2);
  }
}

TEST_CASE("outputs of norms and activations that are kept have the bits of those computed again") {
  const auto expect = [](const Layout& layout, const Changes& model) {
    const Changes all = with(model, layout.changes);
    const auto kept = train_ranks(layout.ranks, with(all, {"recompute.cheap=false"}), 2),
               again = train_ranks(layout.ranks, with(all, {"recompute.cheap=true"}), 2);
    for (size_t rank = 0; rank < kept.size(); ++rank) {
      CAPTURE(layout.name, rank);
      CHECK((again[rank].losses == kept[rank].losses));
      CHECK((again[rank].gradients == kept[rank].gradients));
      CHECK((again[rank].weights == kept[rank].weights));
    }
  };
  for (const Layout& layout : layouts()) {
    expect(layout, with(kQwen3, {"mixed_precision.name=bf16_mixed"}));
    if (layout.ranks > 2) continue;
    expect(layout, kGpt2);
    expect(layout, with(kTensorwise, {"model.num_layers=4", "model.num_query_groups=4",
                                      "train.global_batch_size=8", "train.micro_batch_size=2"}));
  }
  for (const Changes& more : {selective("core_attn,mlp"),
                              selective("layernorm"),
                              Changes{"model.activation=gelu"},
                              {"recompute=full", "recompute.num_layers=2"}})
    expect({more.back().c_str(), 1, more}, kQwen3);
}

TEST_CASE("recomputed modules give the same bits in 8 bits") {
  const Changes more{"model.num_layers=4", "model.num_query_groups=4", "train.global_batch_size=8",
                     "train.micro_batch_size=2"};
  for (const Changes& scales : {kTensorwise, kDelayed})
    for (const Layout& layout : layouts()) {
      if (layout.ranks > 2) continue;
      expect_same_bits(layout, with(scales, more), {"mlp", "core_attn,mlp,layernorm"});
    }
}

TEST_CASE("each recomputed module keeps fewer activations") {
  const Changes base = with(kQwen3, {"train.global_batch_size=4", "train.micro_batch_size=4"});
  const auto with_modules = [&](const char* modules) {
    return activations(with(base, selective(modules)));
  };
  const int64_t none = activations(base), core = with_modules("core_attn"),
                norms = with_modules("core_attn,norms"), all = with_modules("core_attn,norms,mlp");
  CHECK(core < none);
  CHECK(norms < core);
  CHECK(all < norms);
  CHECK(with_modules("layernorm") == none);  // on a CPU the outputs of norms are never kept
  const int64_t all_kept = activations(with(base, {"recompute.cheap=false"}));
  CHECK(none < all_kept);
  CHECK(activations(with(base, with(selective("layernorm"), {"recompute.cheap=false"}))) <
        all_kept);
}

}  // namespace parity_recompute_test
