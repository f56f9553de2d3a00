// Tests that forwards and backwards which run together, so that exchanges of experts' rows travel
// while the other pass computes, change no bit. Runs under the stream sanitizer.
#include <algorithm>

#include <catch2/catch.hpp>

#include "covering.h"
#include "train_experts_testing.h"

namespace parity_expert_pairs_test {

using namespace mtrain;
using namespace train_testing;

namespace {

constexpr int64_t kFewSteps = 3;

const Changes kOn{"comm_overlap.overlap_moe_expert_parallel_comm=true"},
    kDelay{"comm_overlap.delay_wgrad_compute=true"};

// Trains in pairs, and checks that some pairs ran and exchanged rows.
std::vector<Trained> in_pairs(int ranks, const Changes& on,
                              const std::shared_ptr<const data::Dataset>& data) {
  const RunPlan plan = plan::make_plan(tiny(on, ranks), ranks, kVocab);
  CHECK(plan.overlap.overlap_moe_expert_parallel_comm);
  std::vector<Trained> trained = all_ranks(ranks, on, kFewSteps, false, data);
  CHECK(std::ranges::any_of(trained, [](const Trained& t) { return t.paired.all > 0; }));
  return trained;
}
// Trains without pairs, and checks that none ran, except those that dualpipev's lists always have,
// whose passes take turns.
std::vector<Trained> without_pairs(int ranks, const Changes& off,
                                   const std::shared_ptr<const data::Dataset>& data) {
  const Recipe r = tiny(off, ranks);
  const RunPlan plan = plan::make_plan(r, ranks, kVocab);
  CHECK_FALSE(plan.overlap.overlap_moe_expert_parallel_comm);
  CHECK_FALSE(plan.overlap.fine_grained_1f1b);
  std::vector<Trained> trained = all_ranks(ranks, off, kFewSteps, false, data);
  if (r.distributed.pipeline.pp_schedule != ScheduleId::dualpipev)
    CHECK(std::ranges::all_of(trained, [](const Trained& t) { return t.paired.all == 0; }));
  return trained;
}
const std::shared_ptr<const data::Dataset> kCounting = std::make_shared<CountingData>();

enum Factor {
  kPipeline,
  kStrategy,
  kDispatcher,
  kTensor,
  kCp,
  kModel,
  kNumbers,
  kRecompute,
  kPacked,
  kDelayed,
  kFactors
};
using Choice = Combination<kFactors>;

// Values of kDispatcher, kTensor, kModel and kNumbers.
enum { alltoall, flex, padded };
enum { full_model, divided, sequence, undivided_experts, sequence_overlapped };
enum { plain, shared, balanced, few_tokens };
enum { fp32, bf16, fp8, fp8_delayed_scales };
const std::vector<Changes> kPipelines{
    {},
    pipelined("interleaved_1f1b", 2),
    pipelined("dfs", 2),
    pipelined("dualpipev", 2),
    {"distributed.pp_size=4", "distributed.vpp_size=2",
     "distributed.pipeline.pp_schedule=interleaved_1f1b", "model.num_layers=8"}};
const std::vector<Changes> kStrategies{kMegatron, kFsdp2, kAtOnce};
const std::vector<Changes> kDispatchers{
    {}, kFlex, join({{"model.moe.expert_capacity_factor=1.25"}, kPadded})};
// GEMMs of so few rows are split only on request.
const Changes kTensorOverlap{
    "comm_overlap.tp_comm_overlap=true",
    "comm_overlap.tp_comm_overlap_cfg={qkv_fprop: {}, fc1_fprop: {}, proj_fprop: {num_splits: 2}, "
    "fc2_fprop: {method: ring_exchange}, proj_dgrad: {}, fc2_dgrad: {}}"};
const std::vector<Changes> kTensors{{},
                                    tp(2),
                                    join({tp(2), kSequence}),
                                    join({tp(2), kWhole}),
                                    join({tp(2), kSequence, kTensorOverlap})};
// The four tokens of a micro-batch choose one of 64 experts each. In the first layers none is of
// the second half, so the second rank of ep has no rows.
const Changes kFewTokens = join(
    {kPlain,
     {"model.moe.num_experts=64", "model.moe.router_topk=1", "model.moe.router_pre_softmax=true",
      "model.moe.norm_topk_prob=false", "debug.route=zipf", "dataset.seq_length=4"}});
const std::vector<Changes> kModels{kPlain, kShared, kBalanced, kFewTokens};
const Changes kFloat8{"mixed_precision.name=bf16_mixed", "mixed_precision.fp8=hybrid",
                      "debug.emulate_fp8=true",          "model.hidden_size=64",
                      "model.ffn_hidden_size=96",        "model.moe.ffn_hidden_size=48"};
const std::vector<Changes> kTypes{
    {},
    {"mixed_precision.name=bf16_mixed"},
    kFloat8,
    join({kFloat8,
          {"mixed_precision.fp8_recipe=delayed", "mixed_precision.fp8_amax_history_len=4"}})};
constexpr Choice kValues{5, 3, 3, 5, 2, 4, 4, 2, 2, 2};

int pp(const Choice& c) { return c[kPipeline] == 0 ? 1 : c[kPipeline] == 4 ? 4 : 2; }
int tp_size(const Choice& c) { return c[kTensor] == full_model ? 1 : 2; }
int ranks(const Choice& c) {
  const bool spread = c[kCp] == 1 || c[kTensor] == undivided_experts;  // over ranks of one sample
  return pp(c) * tp_size(c) * (1 + c[kCp]) * (spread ? 1 : 2);
}

bool worth_training(const Choice& c) {
  if (ranks(c) > 8) return false;
  const bool gathers = c[kTensor] == sequence || c[kTensor] == sequence_overlapped;
  if (c[kDispatcher] == flex && gathers) return false;
  if (c[kModel] == few_tokens && (c[kPacked] || c[kTensor] == sequence_overlapped)) return false;
  return c[kNumbers] < fp8 || c[kTensor] == full_model;
}

Changes recompute_of(const Choice& c) {
  if (!c[kRecompute]) return {};
  return {"recompute.granularity=selective", "recompute.cheap=false",
          c[kModel] == shared ? "recompute.modules=[moe_act,shared_experts,layernorm]"
                              : "recompute.modules=[moe_act,layernorm]"};
}

Changes changes_of(const Choice& c) {
  return join({kModels[size_t(c[kModel])], ep(2), kPipelines[size_t(c[kPipeline])],
               kStrategies[size_t(c[kStrategy])], kDispatchers[size_t(c[kDispatcher])],
               kTensors[size_t(c[kTensor])], c[kCp] ? cp2("p2p") : Changes{},
               kTypes[size_t(c[kNumbers])],
               c[kNumbers] >= fp8 && c[kModel] == shared
                   ? Changes{"model.moe.shared_expert_ffn_hidden_size=64"}
                   : Changes{},
               recompute_of(c),
               c[kPacked] ? Changes{"packed_sequence.packed_sequence_size=24"} : Changes{}});
}

std::shared_ptr<const data::Dataset> data_of(const Choice& c) {
  if (c[kPacked]) return std::make_shared<PackedCountingData>();  // its last document is padding
  return std::make_shared<CountingData>(kVocab, c[kModel] == few_tokens ? 4 : kSeq);
}

}  // namespace

TEST_CASE("passes that hide each other's exchanges have the bits of passes one after the other") {
  int pairs = 0;
  for (const Choice& c : covering_choices(kValues, 2, {}, worth_training, ranks)) {
    const Changes off = changes_of(c);
    CAPTURE(off, c[kDelayed]);
    const auto data = data_of(c);
    const auto trained =
        in_pairs(ranks(c), join({off, kOn, c[kDelayed] ? kDelay : Changes{}}), data);
    expect_same_bits(without_pairs(ranks(c), off, data), trained);
    // A rank without rows still takes part in the exchanges.
    if (c[kModel] == few_tokens && c[kDispatcher] != padded)
      CHECK(
          std::ranges::any_of(trained, [](const Trained& t) { return t.paired.without_rows > 0; }));
    ++pairs;
  }
  CHECK(pairs >= 25);
}

TEST_CASE("chunks of experts in the passes that run alone change no bit") {
  for (const Changes& model : {kPlain, kShared})
    for (const Layout& l :
         std::vector<Layout>{{2, join({ep(2), kMegatron})},
                             {4, join({ep(2), kFsdp2, pipelined("interleaved_1f1b", 2)})}}) {
      CAPTURE(model, l.changes);
      const Changes off = with(model, l.changes);
      expect_same_bits(
          without_pairs(l.ranks, off, kCounting),
          in_pairs(l.ranks, join({off, kOn, {"comm_overlap.moe_dispatch_chunks=4"}}), kCounting));
    }
}

TEST_CASE("a table that embedding and output layer share has the same sums in pairs") {
  const Changes dense{"model.moe.first_dense_layers=3"}, further{"model.mtp_num_layers=2"},
      interleaved = pipelined("interleaved_1f1b", 2);
  for (const Layout& l : std::vector<Layout>{{2, kMegatron},
                                             {2, kFsdp2},
                                             {2, kAtOnce},
                                             {4, join({kMegatron, pipelined("dualpipev", 2)})},
                                             {4, join({kMegatron, further, interleaved})},
                                             {4, join({kAtOnce, further, interleaved})}}) {
    CAPTURE(l.changes);
    const Changes off =
        join({kPlain, l.changes, ep(2), dense, {"model.share_embeddings_and_output_weights=true"}});
    for (const Changes& delay : {Changes{}, kDelay})
      expect_same_bits(without_pairs(l.ranks, off, kCounting),
                       in_pairs(l.ranks, join({off, kOn, delay}), kCounting));
  }
}

TEST_CASE("all settings of pairs in a pipeline give the same bits") {
  const Changes off = join({kShared,
                            ep(2),
                            pipelined("interleaved_1f1b", 2),
                            kMegatron,
                            {"model.num_layers=8", "model.moe.first_dense_layers=1"}});
  const auto plain = without_pairs(4, off, kCounting);
  for (int set = 0; set < 16; ++set) {
    Changes on = with(off, kOn);
    if (set & 1) on.push_back("comm_overlap.delay_wgrad_compute=true");
    if (set & 2) on.push_back("comm_overlap.overlap_p2p_backward_on_comm_stream=true");
    if (set & 4) on.push_back("comm_overlap.overlap_p2p_wgrad_delayed_layer_number=2");
    if (set & 8) on.push_back("comm_overlap.overlap_p2p_with_transformer_layer_wgrad=true");
    CAPTURE(on);
    expect_same_bits(plain, in_pairs(4, on, kCounting));
  }
}

}  // namespace parity_expert_pairs_test
