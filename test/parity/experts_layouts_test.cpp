// Compares models whose experts are spread over ranks with a single rank: losses, gradients, the
// router's choices, checkpoints. Runs under the stream sanitizer.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/checkpoint_testing.h"
#include "test/support/temporary_folder.h"
#include "train_experts_testing.h"

namespace parity_experts_layouts_test {

using namespace mtrain;
using namespace train_testing;
namespace fs = std::filesystem;

TEST_CASE("experts over ranks train as one rank does under megatron_ddp") {
  expect_layouts({{2, join({ep(2), kMegatron})},
                  {4, join({ep(4), kMegatron})},
                  {4, join({ep(2), kMegatron})},
                  {4, join({ep(2), kMegatron, {"ddp.average_in_collective=true"}})},
                  {2, join({ep(2),
                            kMegatron,
                            {"ddp.overlap_grad_reduce=false", "ddp.overlap_param_gather=false"}})},
                  {4, join({ep(2), kMegatron, {"ddp.use_distributed_optimizer=false"}})},
                  {4, join({ep(2), kMegatron, kAllGather})},
                  {4, join({ep(4), kMegatron, kAllGather})},
                  {2, join({ep(2), kMegatron, kFlex})},
                  {4, join({ep(4), kMegatron, kFlex})},
                  {4, join({ep(2), kMegatron, kFlex, {"ddp.average_in_collective=true"}})}});
}

TEST_CASE("experts over ranks train as one rank does under fsdp2") {
  expect_layouts({{2, join({ep(2), kFsdp2})},
                  {4, join({ep(2), kFsdp2})},
                  {4, join({ep(4), kAtOnce})},
                  {4, join({ep(2), kAtOnce, {"distributed.reshard_after_forward=false"}})},
                  {4, join({ep(2), kFsdp2, {"distributed.moe.reshard_after_forward=false"}})},
                  {4, join({ep(2), kAtOnce, kAllGather})},
                  {4, join({ep(2), kAtOnce, kFlex})},
                  {4, join({ep(4), kFsdp2, kFlex})},
                  {4, join({ep(2), kFsdp2, {"distributed.dp_replicate_size=2"}})},
                  {4, join({ep(2), kAtOnce, {"distributed.dp_replicate_size=2"}})},
                  {8, join({ep(2), kAtOnce, {"distributed.dp_replicate_size=2"}})},
                  {4, join({ep(2),
                            kFsdp2,
                            {"distributed.fsdp2_forward_prefetch_depth=0",
                             "distributed.fsdp2_backward_prefetch_depth=0"}})}});
}

TEST_CASE("experts over ranks that are computed again choose and train alike") {
  const Changes modules{"recompute.granularity=selective",
                        "recompute.modules=[moe,shared_experts,layernorm]"};
  expect_layouts({{2, join({ep(2), kMegatron, kFull})},
                  {4, join({ep(2), kFsdp2, kFull, {"recompute.num_layers=2"}})},
                  {4, join({ep(2), kAtOnce, kFull, kAllGather})},
                  {2, join({ep(2), kMegatron, {"recompute.granularity=selective"}})},
                  {4, join({ep(2), kFsdp2, modules})},
                  {2, join({ep(2), kMegatron, modules, kAllGather})},
                  {4, join({ep(2), kFsdp2, kFull, kKeepRouters})},
                  {4, join({ep(2), kAtOnce, kFull, kAllGather, kKeepRouters})},
                  {4, join({ep(2), kFsdp2, kFull, kKeepRouters, {"distributed.cp_size=2"}})},
                  {4, join({ep(4), kMegatron, kFull, kFlex})},
                  {4, join({ep(2), kFsdp2, kFull, {"recompute.num_layers=2"}, kFlex})},
                  {4, join({ep(4), kFsdp2, modules, kFlex})}},
                 false);
}

TEST_CASE("routers that recomputation leaves out change no bit") {
  for (const Changes& model : {kPlain, kShared, kBalanced}) {
    const Changes base = join({model, ep(2), kFsdp2, kFull, {"recompute.num_layers=2"}});
    const auto again = all_ranks(2, base, 4), kept = all_ranks(2, with(base, kKeepRouters), 4);
    for (size_t rank = 0; rank < 2; ++rank) {
      CHECK((kept[rank].losses == again[rank].losses));
      CHECK((kept[rank].norms == again[rank].norms));
      CHECK((kept[rank].balance == again[rank].balance));
      for (const auto& [layer, forwards] : kept[rank].choices[3]) {
        CAPTURE(model, layer);
        if (!layer.ends_with(".route")) continue;  // the gate of a shared expert
        CHECK(forwards.size() == kMicroBatches / 2);
        CHECK(again[rank].choices[3].at(layer).size() == kMicroBatches);
      }
    }
  }
}

TEST_CASE("experts over ranks balance their loads and drop tokens as one rank does") {
  expect_layouts({{2, join({ep(2), kMegatron})},
                  {4, join({ep(4), kMegatron, kAllGather})},
                  {4, join({ep(2), kFsdp2})},
                  {4, join({ep(2), pipelined("1f1b", 1), kMegatron})},
                  {4, join({ep(2), pipelined("interleaved_1f1b", 2), kAtOnce})},
                  {4, join({ep(4), kMegatron, kFlex})},
                  {4, join({ep(2), pipelined("interleaved_1f1b", 2), kFsdp2, kFlex})}},
                 true, {kBalanced});
  expect_layouts(
      {{2, join({ep(2), kMegatron, kFull})}, {2, join({ep(2), kMegatron, kFull, kFlex})}}, false,
      {kBalanced});
  // Choices of nearly the same weight may be dropped in another order, so fewer steps are compared.
  expect_layouts({{2, join({ep(2), kMegatron})},
                  {4, join({ep(2), kFsdp2, kAllGather})},
                  {4, join({ep(2), kFsdp2, kFlex})},
                  {4, join({ep(4), kMegatron, kPadded})}},
                 true, {join({kBalanced, {"model.moe.token_drop_policy=probs"}})}, 7);
}

TEST_CASE("experts whose rows are filled up to their capacity train as one rank does") {
  const Changes modules{"recompute.granularity=selective", "recompute.modules=[moe]"};
  expect_layouts({{2, join({ep(2), kMegatron, kPadded})},
                  {4, join({ep(4), kFsdp2, kPadded})},
                  {4, join({ep(2), kMegatron, kPadded, kAllGather})},
                  {4, join({ep(4), kAtOnce, kPadded, kAllGather})},
                  {4, join({ep(2), pipelined("interleaved_1f1b", 2), kMegatron, kPadded})}},
                 true, {kBalanced});
  expect_layouts({{2, join({ep(2), kMegatron, kFull, kPadded})},
                  {4, join({ep(4), kFsdp2, modules, kPadded})},
                  {4, join({ep(2), kAtOnce, kFull, kPadded, kAllGather})},
                  {2, join({ep(2), kMegatron, modules, kPadded, kAllGather})}},
                 false, {kBalanced});
  // With 0.3 most choices are dropped, and with 3 there are more rows than choices.
  for (const char* factor : {"0.3", "3"})
    expect_layouts(
        {{4, join({ep(4), kMegatron, kPadded})}, {4, join({ep(2), kFsdp2, kPadded, kAllGather})}},
        true, {join({kBalanced, {fmt::format("model.moe.expert_capacity_factor={}", factor)}})}, 7);
}

TEST_CASE("the host waits for no numbers of rows if experts are padded to their capacity") {
  const auto host_wait = [](const Changes& changes) {
    const Recipe r = tiny(with(kBalanced, changes), 4);
    std::vector<double> ms(4);
    run_ranks(4, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      ms[size_t(rank.rank())] = t.step().experts.value().host_wait_ms;
    });
    return ms;
  };
  for (const Changes& dispatcher : {Changes{}, kAllGather})
    for (const Changes& more : {kMegatron, join({kFsdp2, kFull})}) {
      CAPTURE(dispatcher, more);
      for (const double ms : host_wait(join({ep(4), more, dispatcher}))) CHECK(ms > 0);
      for (const double ms : host_wait(join({ep(4), more, dispatcher, kPadded}))) CHECK(ms == 0);
    }
}

TEST_CASE("experts over ranks train as one rank does under every kind of schedule") {
  const Changes pairs{"comm_overlap.fine_grained_1f1b=true"};
  expect_layouts({{4, join({ep(2), pipelined("1f1b", 1), kMegatron})},
                  {8, join({ep(2), pipelined("1f1b", 1), kFsdp2})},
                  {4, join({ep(2), pipelined("gpipe", 1), kAtOnce, kAllGather})},
                  {4, join({ep(2), pipelined("interleaved_1f1b", 2), kMegatron})},
                  {4, join({ep(2), pipelined("interleaved_1f1b", 2), kMegatron, pairs})},
                  {4, join({ep(2),
                            pipelined("interleaved_1f1b", 2),
                            kMegatron,
                            pairs,
                            {"comm_overlap.delay_wgrad_compute=true"}})},
                  {4, join({ep(2), pipelined("interleaved_1f1b", 2), kMegatron, pairs, kFlex})},
                  {4, join({ep(2), pipelined("zero_bubble", 1), kFsdp2})},
                  {4, join({ep(2), pipelined("zero_bubble", 1), kMegatron, kFlex})},
                  {8, join({ep(4), pipelined("1f1b", 1), kAtOnce, kFlex})},
                  {4, join({ep(2), pipelined("zero_bubble", 2), kMegatron})},
                  {4, join({ep(2), pipelined("v_schedule", 2), kMegatron})},
                  {4, join({ep(2), pipelined("dualpipev", 2), kMegatron})},
                  {4, join({ep(2), pipelined("looped_bfs", 2), kFsdp2})}});
}

TEST_CASE("experts train as one rank does under context parallelism") {
  const auto cp = cp2;
  expect_layouts({{2, join({cp("p2p"), kFsdp2})},
                  {2, join({cp("all_gather"), kMegatron})},
                  {2, join({cp("p2p"), ep(2), kMegatron})},
                  {4, join({cp("a2a"), ep(2), kFsdp2})},
                  {4, join({cp("p2p"), ep(4), kMegatron, kAllGather})},
                  {4, join({cp("p2p"), ep(4), kMegatron, kFlex})},
                  {4, join({cp("a2a"), ep(2), kFsdp2, kFlex})},
                  {8, join({cp("all_gather"), ep(2), pipelined("1f1b", 1), kAtOnce})}});
  expect_layouts({{4, join({cp("p2p"), ep(2), kMegatron, kFull})}}, false);
}

TEST_CASE("experts that tensor parallelism divides train as one rank's do") {
  const Changes modules{"recompute.granularity=selective",
                        "recompute.modules=[moe,shared_experts]"};
  expect_layouts({{2, join({tp(2)})},
                  {4, join({tp(4), kMegatron})},
                  {4, join({tp(2), kMegatron})},
                  {4, join({tp(2), kFsdp2})},
                  {4, join({tp(2), ep(2), kMegatron})},
                  {4, join({tp(2), ep(2), kFsdp2, kAllGather})},
                  {4, join({tp(2), ep(2), kMegatron, kFlex})},
                  {4, join({tp(2), ep(2), kMegatron, {"ddp.use_distributed_optimizer=false"}})}});
  expect_layouts({{4, join({tp(2), ep(2), kAtOnce, kFull})},
                  {2, join({tp(2), modules})},
                  {4, join({tp(2), ep(2), kMegatron, modules})}},
                 false);
}

TEST_CASE("experts train as one rank's do under sequence parallelism") {
  const Changes modules{"recompute.granularity=selective",
                        "recompute.modules=[moe,shared_experts]"};
  expect_layouts(
      {{2, join({tp(2), kSequence})},
       {4, join({tp(4), kSequence})},
       {4, join({tp(2), kSequence, kFsdp2})},
       {4, join({tp(2), kSequence, ep(2), kMegatron})},
       {4, join({tp(2), kSequence, ep(2), kFsdp2, kAllGather})},
       {8, join({tp(2), kSequence, ep(2), kFsdp2})},
       {8, join({tp(2), kSequence, ep(4), kMegatron})},
       {4, join({tp(2), kSequence, ep(2), kMegatron, {"ddp.average_in_collective=true"}})},
       {4, join({tp(2), kSequence, {"comm_overlap.tp_comm_overlap=true"}})}});
  expect_layouts({{4, join({tp(2), kSequence, ep(2), kAtOnce, kFull})},
                  {2, join({tp(2), kSequence, kFull})},
                  {2, join({tp(2), kSequence, modules})},
                  {4, join({tp(2), kSequence, ep(2), kMegatron, modules})},
                  {4, join({tp(2), kSequence, ep(2), kMegatron, modules, kAllGather})}},
                 false);
}

TEST_CASE("whole experts on ranks of tensor parallelism train as one rank's do") {
  expect_layouts(
      {{2, join({tp(2), kWhole})},
       {2, join({tp(2), kWhole, ep(2)})},
       {4, join({tp(4), kWhole, ep(2)})},
       {4, join({tp(2), kWhole, kMegatron})},
       {4, join({tp(2), kWhole, ep(2), kMegatron})},
       {4, join({tp(2), kWhole, ep(4), kFsdp2})},
       {4, join({tp(2), kWhole, ep(2), kFsdp2, kAllGather})},
       {4, join({tp(2), kWhole, ep(4), kMegatron, kFlex})},
       {8, join({tp(2), kWhole, ep(4), kAtOnce})},
       {8, join({tp(4), kWhole, ep(2), kMegatron})},
       {8, join({tp(2), kWhole, ep(2), kFsdp2, {"distributed.dp_replicate_size=2"}})},
       {4, join({tp(2), kWhole, ep(2), kMegatron, {"ddp.average_in_collective=true"}})},
       {4, join({tp(2), kWhole, ep(4), kMegatron, {"ddp.average_in_collective=true"}})},
       {4, join({tp(2), kWhole, kMegatron, {"ddp.average_in_collective=true"}})},
       {4, join({tp(2), kWhole, ep(2), kMegatron, {"ddp.use_distributed_optimizer=false"}})},
       {4, join({tp(4), kWhole, ep(2), kMegatron, {"ddp.use_distributed_optimizer=false"}})}});
  expect_layouts({{4, join({tp(2), kWhole, ep(2), kAtOnce, kFull})}}, false);
}

TEST_CASE("divided and whole experts balance their loads as one rank does") {
  // The capacity is of a rank's tokens: no choice is dropped here.
  const Changes model = join({kBalanced, {"model.moe.expert_capacity_factor=8"}});
  expect_layouts({{2, join({tp(2)})},
                  {4, join({tp(2), ep(2), kMegatron})},
                  {2, join({tp(2), kSequence})},
                  {4, join({tp(2), kSequence, ep(2), kFsdp2})},
                  {4, join({tp(2), kWhole, ep(4), kMegatron})},
                  {4, join({tp(2), ep(2), kMegatron, kPadded})},
                  {4, join({tp(2), kSequence, ep(2), kFsdp2, kPadded})},
                  {4, join({tp(2), kSequence, ep(2), kMegatron, kPadded, kAllGather})},
                  {4, join({tp(2), kWhole, ep(4), kMegatron, kPadded})}},
                 true, {model});
  // Without sequence parallelism ranks of tp drop the same choices as one rank.
  expect_layouts({{2, join({tp(2)})}, {4, join({tp(2), ep(2), kMegatron})}}, true, {kBalanced});
}

TEST_CASE("the balance of each sample does not depend on the ranks that have its tokens") {
  for (const char* losses : {"seq_aux_loss", "aux_loss"}) {
    const Changes model = join(
        {kShared,
         {"train.micro_batch_size=4", fmt::format("model.moe.load_balancing_type={}", losses)}});
    const Trained one = one_rank(model, 10, false);
    for (const Layout& l : std::vector<Layout>{{2, join({tp(2)})},
                                               {2, join({tp(2), kSequence})},
                                               {4, join({tp(4), kSequence, kWhole, ep(2)})},
                                               {4, join({tp(2), kSequence, ep(2), kMegatron})},
                                               {4, join({tp(2), kSequence, cp2("p2p"), ep(2)})}}) {
      CAPTURE(model, l.changes);
      expect_as_alone(one, all_ranks(l.ranks, with(model, l.changes), 10, false), false);
    }
  }
}

TEST_CASE("divided and whole experts train as one rank's do with context and pipeline") {
  expect_layouts(
      {{4, join({tp(2), cp2("p2p"), kMegatron})},
       {4, join({tp(2), cp2("all_gather"), ep(2), kFsdp2})},
       {4, join({tp(2), kSequence, cp2("p2p"), ep(2), kMegatron})},
       {4, join({tp(2), kSequence, cp2("all_gather"), ep(2), kFsdp2, kAllGather})},
       {4, join({tp(2), kWhole, cp2("p2p"), ep(4), kMegatron})},
       {4, join({tp(2), ep(1), pipelined("1f1b", 1), kMegatron})},
       {8, join({tp(2), ep(2), pipelined("1f1b", 1), kFsdp2})},
       {8, join({tp(2), kSequence, ep(2), pipelined("interleaved_1f1b", 2), kMegatron})},
       {8, join({tp(2), kSequence, ep(2), pipelined("zero_bubble", 2), kMegatron, kAllGather})},
       {8, join({tp(2), kWhole, ep(4), pipelined("interleaved_1f1b", 2), kFsdp2})},
       {8,
        join({tp(2),
              kSequence,
              ep(2),
              pipelined("interleaved_1f1b", 2),
              kMegatron,
              {"comm_overlap.fine_grained_1f1b=true", "comm_overlap.delay_wgrad_compute=true"}})}},
      false);
}

TEST_CASE("in fp32 the forward has the same bits for any number of ranks that share experts") {
  const auto logits = [](const Trained& t) -> const Choices& { return t.choices[0]; };
  const auto of_ranks = [](int size) {
    return all_ranks(8, join({kPlain, kMegatron, ep(size)}), 1);
  };
  const auto one = of_ranks(1);
  for (const int size : {2, 4, 8}) {
    CAPTURE(size);
    const auto spread = of_ranks(size);
    CHECK(spread[0].losses == one[0].losses);
    CHECK(spread[0].evaluation == Approx(one[0].evaluation).epsilon(1e-6));
    for (size_t rank = 0; rank < one.size(); ++rank)
      for (const auto& [layer, want] : logits(one[rank])) {
        const auto& got = logits(spread[rank]).at(layer);
        REQUIRE(got.size() == want.size());
        for (size_t k = 0; k < want.size(); ++k) {
          CHECK((got[k].logits_TE == want[k].logits_TE));
          CHECK((got[k].expert_TK == want[k].expert_TK));
        }
      }
  }
}

namespace {
// All tokens of a sample are the same, so few experts have rows.
class RepeatedToken : public CountingData {
 public:
  void sample(int64_t index, data::Sample& out) const override {
    CountingData::sample(index, out);
    std::fill(out.input.begin(), out.input.end(), int32_t(index % kVocab));
  }
};
}  // namespace

TEST_CASE("ranks whose experts have no rows in a micro-batch continue to train") {
  const Changes model = with(kPlain, {"model.moe.router_topk=2", "model.moe.first_dense_layers=0"});
  const auto data = std::make_shared<RepeatedToken>();
  const Trained one = one_rank(model, 5, false, data);
  for (const Changes& more :
       {join({kMegatron, ep(4)}), join({kAtOnce, ep(4)}), join({kMegatron, ep(4), kAllGather}),
        join({kMegatron, ep(4), kFlex}), join({kAtOnce, ep(4), kFlex}),
        join({tp(2), kSequence, kMegatron, ep(2)}), join({tp(2), kWhole, kAtOnce, ep(4)})}) {
    CAPTURE(more);
    expect_as_alone(one, all_ranks(4, with(model, more), 5, false, data), false);
  }
}

TEST_CASE("experts over ranks train as one rank does on packed documents") {
  const Changes model = with(kPlain, {"packed_sequence.packed_sequence_size=24"});
  const auto data = std::make_shared<PackedCountingData>();
  const Trained one = one_rank(model, 10, true, data);
  for (const Changes& more :
       {join({kMegatron, ep(4)}), join({kFsdp2, ep(2)}), join({kAtOnce, ep(2), kAllGather}),
        join({tp(2), kMegatron, ep(2)}), join({tp(2), kSequence, kFsdp2, ep(2)}),
        join({tp(4), kSequence}), join({tp(2), kWhole, kMegatron, ep(4)}),
        join({kMegatron, ep(4), kFlex}), join({kFsdp2, ep(2), kFlex})}) {
    CAPTURE(more);
    expect_as_alone(one, all_ranks(4, with(model, more), 10, true, data));
  }
  // Ranks of cp pad documents.
  for (const Changes& more :
       {join({cp2("p2p"), tp(2), kSequence, kMegatron, ep(2)}),
        join({cp2("p2p"), tp(2), kSequence, kMegatron}),
        join({cp2("all_gather"), tp(2), kWhole, kFsdp2, ep(4), kAllGather})}) {
    CAPTURE(more);
    expect_as_alone(one, all_ranks(4, with(model, more), 10, false, data), false);
  }
}

TEST_CASE("bf16 experts over ranks stay near one rank's losses") {
  for (const Changes& reduce :
       {Changes{"mixed_precision.name=bf16_mixed"},
        Changes{"mixed_precision.name=bf16_mixed", "mixed_precision.grad_reduce_in_fp32=false"}}) {
    const Changes model = with(kPlain, reduce);
    const Trained one = one_rank(model, 10, false);
    for (const Changes& more :
         {join({kMegatron, ep(2)}), join({kFsdp2, ep(2)}), join({kFsdp2, ep(4)}),
          join({kMegatron, ep(4), kAllGather}), join({kMegatron, ep(4), kFlex})}) {
      CAPTURE(model, more);
      check_close(one.losses, all_ranks(4, with(model, more), 10, false)[0].losses, 2e-2);
    }
  }
}

namespace {
// Trains `steps` from a checkpoint or from the start, and saves. Returns the losses.
std::vector<double> run_and_save(const Changes& base, const Layout& l, int steps,
                                 const std::optional<fs::path>& from, const fs::path& to) {
  const Recipe r = tiny(with(base, l.changes), l.ranks);
  std::vector<double> losses;
  run_ranks(l.ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    if (from) run::resume_run(t, *from);
    std::vector<double> own;
    for (int i = 0; i < steps; ++i) own.push_back(t.step().loss);
    run::save_run(t, to);
    if (rank.rank() == 0) losses = own;
  });
  return losses;
}

fs::path saved_in(const fs::path& folder) {
  const auto found = storage::find_latest(folder);
  REQUIRE(found);
  return found->path;
}

const std::vector<Layout> kSaved{
    {1, {}},
    {2, join({ep(2), kMegatron})},
    {4, join({ep(2), kFsdp2})},
    {4, join({ep(4), kFsdp2})},
    {8, join({ep(8), kMegatron})},
    {4, join({ep(2), kFsdp2, {"distributed.dp_replicate_size=2"}})},
    {4, join({ep(2), kMegatron, {"ddp.use_distributed_optimizer=false"}})},
    {4, join({ep(2), pipelined("1f1b", 1), kMegatron})},
    {8, join({ep(4), pipelined("interleaved_1f1b", 2), kFsdp2})},
    {2, join({tp(2)})},
    {4, join({tp(2), ep(2), kFsdp2})},
    {8, join({tp(2), kSequence, ep(2), kMegatron})},
    {4, join({tp(4), kWhole, ep(2)})},
    {8, join({tp(2), kWhole, ep(4), kFsdp2})},
    {4, join({tp(2), kWhole, ep(4), kMegatron, {"ddp.use_distributed_optimizer=false"}})},
    {8, join({tp(2), ep(2), pipelined("1f1b", 1), kMegatron})}};
}  // namespace

TEST_CASE("a checkpoint of experts is loaded and saved again bit for bit over any ranks") {
  for (const size_t half : {0, 1}) {
    const char* precision = half ? "bf16_mixed" : "fp32";
    const Changes base = with(kShared, {fmt::format("mixed_precision.name={}", precision)});
    const TemporaryFolder root;
    for (size_t i = 0; i < kSaved.size(); ++i) {
      if (!in_turn(i, half, 2)) continue;
      const Layout &own = kSaved[i], &other = kSaved[(i + 1) % kSaved.size()];
      CAPTURE(precision, own.changes, other.changes);
      const fs::path first = root.path / fmt::format("{}", i),
                     again = root.path / fmt::format("{}again", i);
      run_and_save(base, own, 2, {}, first);
      run_and_save(base, other, 0, saved_in(first), again);
      for (const auto set : {storage::TensorSet::weights, storage::TensorSet::optimizer})
        CHECK(same_tensors(saved_in(first), saved_in(again), set));
    }
  }
}

TEST_CASE("a run of experts resumes from a checkpoint, bit by bit under its own layout") {
  const TemporaryFolder root;
  for (const size_t i : {size_t(2), size_t(4), size_t(8), size_t(11), size_t(13)}) {
    const Layout &own = kSaved[i], &other = kSaved[i - 1];
    CAPTURE(own.changes, other.changes);
    const fs::path folder = root.path / std::to_string(i);
    run_and_save(kPlain, own, 3, {}, folder);
    const auto straight = run_and_save(kPlain, own, 6, {}, root.path / "unused");
    const std::vector<double> tail(straight.begin() + 3, straight.end());
    CHECK((run_and_save(kPlain, own, 3, saved_in(folder), root.path / "unused") == tail));
    check_close(tail, run_and_save(kPlain, other, 3, saved_in(folder), root.path / "unused"), 1e-5);
  }
}

TEST_CASE("saving holds one expert beside a rank's own part") {
  const Changes model{"model.num_layers=2", "model.moe.num_experts=16",
                      "model.moe.ffn_hidden_size=2048", "train.global_batch_size=4",
                      "train.micro_batch_size=1"};
  const int64_t expert = 2 * 2048 * 48 * 4;  // bytes of the larger matrix
  for (const Changes& more :
       {join({ep(2), kFsdp2}), join({ep(4), kMegatron}), join({tp(2), ep(2), kFsdp2})}) {
    CAPTURE(more);
    const Recipe r = tiny(with(model, more), 4);
    const TemporaryFolder root;
    run_ranks(4, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      // No step is made, since its memory would exceed that of saving.
      const auto& memory = rank.device.allocator();
      const int64_t before = memory.total().current;
      run::save_run(t, root.path);
      const int64_t taken = memory.total().peak - before;
      CHECK(taken < 3 * expert);
    });
  }
}

TEST_CASE("losses and loads of experts over ranks are alike on all ranks and under all layouts") {
  const train::ExpertStats one = first_expert_stats(1, kPlain)[0];
  CHECK(one.rank_load_max == 1);
  CHECK(one.host_wait_ms == 0);
  double of_ep_4 = 0;
  for (const Layout& l : std::vector<Layout>{{4, join({ep(4), kFsdp2})},
                                             {8, join({ep(4), pipelined("1f1b", 1), kMegatron})},
                                             {4, join({ep(4), kMegatron, kAllGather})},
                                             {4, join({ep(4), kMegatron, kFlex})},
                                             {8, join({tp(2), ep(4), kMegatron})},
                                             {8, join({tp(2), kSequence, ep(4), kMegatron})},
                                             {4, join({tp(2), kWhole, ep(4), kFsdp2})}})
    for (const train::ExpertStats& other : first_expert_stats(l.ranks, with(kPlain, l.changes))) {
      CAPTURE(l.changes);
      CHECK(other.balance_loss == Approx(one.balance_loss).epsilon(1e-6));
      CHECK(other.z_loss == Approx(one.z_loss).epsilon(1e-6));
      CHECK(other.load_max == Approx(one.load_max));
      CHECK(other.load_variation == Approx(one.load_variation));
      CHECK(other.dead == one.dead);
      CHECK(other.rank_load_max > 1);
      CHECK(other.rank_load_max < one.load_max);
      CHECK(other.host_wait_ms > 0);
      if (of_ep_4 == 0) of_ep_4 = other.rank_load_max;
      CHECK(other.rank_load_max == Approx(of_ep_4));
    }
}

TEST_CASE("the load of a rank is of the rows that its experts keep") {
  const auto load = [](const char* factor) {
    return first_expert_stats(4,
                              join({kPlain,
                                    ep(4),
                                    kMegatron,
                                    {fmt::format("model.moe.expert_capacity_factor={}", factor)}}))
        .at(0);
  };
  // A sample has 48 choices: with a quarter of an even share, each of 8 experts keeps 2 of them.
  const train::ExpertStats tight = load("0.25"), wide = load("8");
  CHECK(tight.dropped > 0.5);
  CHECK(tight.rank_load_max < 1.1);
  CHECK(wide.dropped == 0);
  CHECK(wide.rank_load_max > tight.rank_load_max);
  CHECK(tight.load_max == wide.load_max);
}

}  // namespace parity_experts_layouts_test
