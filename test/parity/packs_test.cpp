// Compares micro-batches of several packs with micro-batches of one, under every layout: losses,
// gradients and evaluation of the same global batch. Runs under the stream sanitizer.
#include <catch2/catch.hpp>

#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/comm_testing.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"
#include "train_pieces.h"

namespace parity_packs_test {

using namespace mtrain;
using namespace train_testing;
namespace fs = std::filesystem;

namespace {

struct Layout {
  const char* name;
  int ranks;
  Changes changes;
};

struct Result {
  std::vector<double> losses, norms, balance;
  double evaluation = 0;
  Pieces gradients;  // in step 1, clipped, times 1 - beta
};

const int64_t kSteps = compared_steps(20);

// Eight packs a step, one at a time; enough kv heads for every type of context parallelism.
const Changes kPacks{"packed_sequence.packed_sequence_size=24", "train.global_batch_size=8",
                     "train.micro_batch_size=1", "model.num_query_groups=4"};
Changes packs_at_once(int packs) { return {fmt::format("train.micro_batch_size={}", packs)}; }

Changes cp_of(int size, const char* type) {
  return {fmt::format("distributed.cp_size={}", size),
          fmt::format("distributed.cp_comm_type={}", type)};
}
const Changes kLevels{"distributed.hierarchical_context_parallel_sizes=[2,2]"},
    kTensor{"distributed.tp_size=2", "distributed.sequence_parallel=true"};

// Each type of context parallelism with another strategy.
std::vector<Layout> context_layouts() {
  const Changes fsdp{"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2"};
  return {{"p2p 2", 2, with(kMegatron, cp_of(2, "p2p"))},
          {"p2p 4", 4, with(kFsdp2, cp_of(4, "p2p"))},
          {"all_gather 2", 2, with(fsdp, cp_of(2, "all_gather"))},
          {"all_gather 4", 4, with(kMegatron, cp_of(4, "all_gather"))},
          {"a2a 2", 2, with(kFsdp2, cp_of(2, "a2a"))},
          {"a2a 4", 4, with(fsdp, cp_of(4, "a2a"))},
          {"a2a+p2p 4", 4, with(kMegatron, with(cp_of(4, "a2a+p2p"), kLevels))}};
}

Result train_all(const Recipe& r, Device& device, comm::World world, int64_t steps,
                 const std::shared_ptr<const data::Dataset>& data) {
  train::Trainer t = make_trainer(device, r, data, std::move(world));
  // With 13 samples the last batch is partly filled, and some ranks of dp have an empty one.
  const data::ValidationLoader validation(data, 13,
                                          {.micro_batch = t.plan().layout.micro_batch,
                                           .dp_rank = t.data_parallel().rank(),
                                           .dp_size = t.data_parallel().size()});
  Result result;
  for (int64_t i = 0; i < steps; ++i) {
    const train::StepStats s = t.step();
    result.losses.push_back(s.loss);
    result.norms.push_back(s.grad_norm);
    result.balance.push_back(s.experts ? s.experts->balance_loss : 0);
    if (i == 0)
      result.gradients = pieces(t, [&](model::ParamUnit& unit) {
        return t.data_parallel().gather_unit(
            unit, t.optimizer().state()[0].values.own(t.compute(), unit));
      });
  }
  result.evaluation = t.evaluate(validation);
  return result;
}

const auto kData = std::make_shared<PackedCountingData>();

Result train_one_rank(const Changes& changes, int64_t steps = kSteps,
                      const std::shared_ptr<const data::Dataset>& data = kData) {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  return train_all(tiny(with(kPacks, changes)), *device, comm::World::alone(), steps, data);
}

std::vector<Result> train_layout(const Layout& layout, const Changes& changes,
                                 int64_t steps = kSteps,
                                 const std::shared_ptr<const data::Dataset>& data = kData) {
  const Recipe r = tiny(with(with(kPacks, changes), layout.changes), layout.ranks);
  std::vector<Result> results(static_cast<size_t>(layout.ranks));
  run_ranks(layout.ranks, "thread", [&](TestRank& rank) {
    results[size_t(rank.rank())] = train_all(r, rank.device, rank.world, steps, data);
  });
  return results;
}

// The numerics contract in fp32: losses and the gradients of step 1 to 1e-5 relative.
void expect_same(const Result& one, const std::vector<Result>& ranks) {
  check_close(one.losses, ranks[0].losses, 1e-5);
  check_close(one.norms, ranks[0].norms, 1e-4);
  check_close(one.balance, ranks[0].balance, 1e-5);
  CHECK(ranks[0].evaluation == Approx(one.evaluation).epsilon(1e-5));
  check_tensors(one, ranks, &Result::gradients, 1e-5);
  for (const Result& other : ranks) {
    CHECK((other.losses == ranks[0].losses));
    CHECK(other.evaluation == ranks[0].evaluation);
  }
}

}  // namespace

TEST_CASE("several packs at once train as one at a time does, on one rank") {
  const Changes window{"model.window_size=5", "model.attn_logit_softcapping=20"},
      learned{"model.architecture=gpt2"},
      recomputed{"recompute=selective", "recompute.modules=[core_attn,norms]"};
  for (const Changes& model : {Changes{}, window, learned, recomputed}) {
    const Result one = train_one_rank(model);
    for (const int packs : {2, 4, 8}) {
      CAPTURE(model, packs);
      expect_same(one, {train_one_rank(with(model, packs_at_once(packs)))});
    }
  }
}

TEST_CASE("several packs at once train as one at a time does, under context parallelism") {
  const Result one = train_one_rank({});
  for (const Layout& layout : context_layouts())
    for (const int packs : {2, 4}) {
      CAPTURE(layout.name, packs);
      expect_same(one, train_layout(layout, packs_at_once(packs)));
    }
  // In windows and with caps, on the types that have them.
  const Changes window{"model.window_size=5", "model.attn_logit_softcapping=20"};
  const Result in_windows = train_one_rank(window);
  for (const Layout& layout : context_layouts()) {
    if (std::string(layout.name).find("p2p") != std::string::npos) continue;
    CAPTURE(layout.name);
    expect_same(in_windows, train_layout(layout, with(window, packs_at_once(4))));
  }
  const Changes caps{"model.attn_logit_softcapping=20"};
  expect_same(train_one_rank(caps),
              train_layout(context_layouts()[0], with(caps, packs_at_once(2))));
}

TEST_CASE("several packs at once train as one at a time does, under every other layout") {
  const Changes ring = with(kMegatron, cp_of(2, "p2p"));
  const std::vector<Layout> layouts{
      {"ddp", 2, {"distributed.strategy=ddp"}},
      {"megatron_ddp", 4, kMegatron},
      {"megatron_fsdp",
       2,
       {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=3"}},
      {"fsdp2", 2, kFsdp2},
      {"fsdp2, reduced at once", 2, kAtOnce},
      {"tp 2", 2, with(kMegatron, {"distributed.tp_size=2"})},
      {"tp 2 sp", 2, with(kMegatron, kTensor)},
      {"tp 2 sp, split GEMMs", 2,
       with(with(kMegatron, kTensor),
            {"comm_overlap.tp_comm_overlap=true",
             "comm_overlap.tp_comm_overlap_cfg={qkv_fprop: {}, fc1_fprop: {}, proj_fprop: "
             "{num_splits: 2}, fc2_fprop: {method: ring_exchange}}"})},
      {"tp 2 sp, cp 2", 4, with(ring, kTensor)},
      {"tp 2 sp, cp 2 a2a, fsdp2", 4, with(with(kFsdp2, cp_of(2, "a2a")), kTensor)},
      {"pp 2, cp 2", 4, with(ring, {"distributed.pp_size=2", "distributed.pipeline={}"})}};
  const Result one = train_one_rank({});
  for (const Layout& layout : layouts)
    for (const int packs : {2, 4}) {
      if (layout.ranks == 4 && packs == 4 && layout.name == std::string("megatron_ddp")) continue;
      CAPTURE(layout.name, packs);
      expect_same(one, train_layout(layout, packs_at_once(packs)));
    }
}

TEST_CASE("sequence parallelism divides the packs of a micro-batch, not each pack") {
  const Changes size{"packed_sequence.packed_sequence_size=23"};
  const auto data = std::make_shared<PackedCountingData>(kVocab, 23);
  const Layout layout{"tp 2 sp", 2, with(kMegatron, kTensor)};
  expect_same(train_one_rank(size, kSteps, data),
              train_layout(layout, with(size, packs_at_once(2)), kSteps, data));
  CHECK_THROWS_WITH(tiny(with(with(kPacks, size), with(layout.changes, packs_at_once(1))), 2),
                    Catch::Contains("do not divide its length 23"));
}

TEST_CASE("several packs at once train as one at a time does, in every schedule of a pipeline") {
  const Changes deep{"model.num_layers=4"};
  const Result one = train_one_rank(deep, 2);
  for (const auto& [schedule, stages] : {std::pair{"1f1b", 1},
                                         {"gpipe", 1},
                                         {"zero_bubble", 1},
                                         {"interleaved_1f1b", 2},
                                         {"looped_bfs", 2},
                                         {"dfs", 2},
                                         {"v_schedule", 2},
                                         {"dualpipev", 2}})
    for (const int packs : {2, 4}) {
      // Some schedules need more micro-batches than two.
      if (packs == 4 && schedule == std::string("dualpipev")) continue;
      CAPTURE(schedule, packs);
      const Layout layout{
          schedule, 2,
          with(kMegatron, {"distributed.pp_size=2", fmt::format("distributed.vpp_size={}", stages),
                           fmt::format("distributed.pipeline.pp_schedule={}", schedule)})};
      expect_same(one, train_layout(layout, with(deep, packs_at_once(packs)), 2));
    }
}

namespace {
// The loss of loads is that of each pack, so it does not depend on how many are computed at once.
const Changes kExpertModel{"model.moe.num_experts=8",
                           "model.moe.router_topk=2",
                           "model.moe.ffn_hidden_size=40",
                           "model.moe.load_balancing_type=seq_aux_loss",
                           "model.moe.aux_loss_coeff=0.05",
                           "model.moe.z_loss_coeff=0.001",
                           "optimizer.lr=3e-3"};
const Changes kExpertRanks{"distributed.ep_size=2"};
std::vector<Layout> expert_layouts() {
  return {{"ep 2", 2, with(kMegatron, kExpertRanks)},
          {"ep 2, fsdp2, all_gather", 2,
           with(with(kFsdp2, kExpertRanks), {"model.moe.token_dispatcher=all_gather"})},
          {"ep 2, flex, recomputed", 2,
           with(with(kMegatron, kExpertRanks),
                {"model.moe.token_dispatcher=flex", "recompute.granularity=full"})},
          {"tp 2 sp, ep 2", 4, with(with(kMegatron, kTensor), kExpertRanks)},
          {"cp 2, ep 2", 2, with(with(kFsdp2, cp_of(2, "p2p")), kExpertRanks)},
          {"cp 2, tp 2 sp", 4, with(with(kMegatron, cp_of(2, "all_gather")), kTensor)},
          {"pp 2", 2, with(kMegatron, {"distributed.pp_size=2", "distributed.pipeline={}"})}};
}
}  // namespace

TEST_CASE("several packs at once train experts as one at a time does") {
  const Result one = train_one_rank(kExpertModel);
  expect_same(one, {train_one_rank(with(kExpertModel, packs_at_once(4)))});
  for (const Layout& layout : expert_layouts())
    for (const int packs : {2, 4}) {
      CAPTURE(layout.name, packs);
      expect_same(one, train_layout(layout, with(kExpertModel, packs_at_once(packs))));
    }
  // The loss of a micro-batch's loads depends on its packs, and on nothing else of the layout.
  const Changes together = with(kExpertModel, {"model.moe.load_balancing_type=aux_loss"});
  const Result two = train_one_rank(with(together, packs_at_once(2)));
  CHECK((two.balance != train_one_rank(together).balance));
  for (const size_t i : {3, 4, 5}) {
    CAPTURE(expert_layouts()[i].name);
    expect_same(two, train_layout(expert_layouts()[i], with(together, packs_at_once(2))));
  }
}

TEST_CASE("dropout of several packs at once is the same under every layout") {
  const Changes drops =
      with({"model.architecture=gpt2", "model.hidden_dropout=0.1", "model.embedding_dropout=0.1"},
           packs_at_once(2));
  const Result one = train_one_rank(drops);
  for (const Layout& layout :
       {context_layouts()[0], context_layouts()[3], context_layouts()[5],
        Layout{"tp 2 sp, cp 2", 4, with(with(kMegatron, cp_of(2, "p2p")), kTensor)},
        Layout{"pp 2", 2, with(kFsdp2, {"distributed.pp_size=2", "distributed.pipeline={}"})}}) {
    CAPTURE(layout.name);
    expect_same(one, train_layout(layout, drops));
  }
}

TEST_CASE("an evaluation of several packs at once is the mean of their tokens, all once") {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  train::Trainer t = make_trainer(*device, tiny(kPacks), kData);
  const auto loss = [&](int64_t packs) {
    return t.evaluate(data::ValidationLoader(kData, 13, {.micro_batch = packs}));
  };
  const double one = loss(1);
  for (const int64_t packs : {2, 4, 5, 16}) {
    CAPTURE(packs);
    CHECK(loss(packs) == Approx(one).epsilon(1e-6));
  }
}

TEST_CASE("a step of several packs at once counts the same tokens and pairs") {
  const auto device = Device::cpu(1);
  const auto stats = [&](int packs) {
    return make_trainer(*device, tiny(with(kPacks, packs_at_once(packs))), kData).step();
  };
  const train::StepStats one = stats(1);
  for (const int packs : {2, 8}) {
    CHECK(stats(packs).tokens == one.tokens);
    CHECK(stats(packs).mean_document_length == one.mean_document_length);
  }
}

TEST_CASE("a checkpoint resumes with another number of packs at once") {
  const std::vector<double> straight = train_one_rank({}, 6).losses,
                            tail(straight.begin() + 3, straight.end());
  const TemporaryFolder root;
  const auto run = [&](int ranks, const Changes& changes, const fs::path* from,
                       const fs::path& to) {
    const Recipe r = tiny(with(kPacks, changes), ranks);
    std::vector<double> losses;
    run_ranks(ranks, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, kData, rank.world);
      if (from) run::resume_run(t, *from);
      std::vector<double> own;
      for (int i = 0; i < 3; ++i) own.push_back(t.step().loss);
      if (!to.empty()) run::save_run(t, to);
      if (rank.rank() == 0) losses = own;
    });
    return losses;
  };
  const Layout ring{"cp 2", 2, with(with(kMegatron, cp_of(2, "p2p")), packs_at_once(2))};
  run(2, ring.changes, nullptr, root.path / "a");
  const fs::path saved = storage::find_latest(root.path / "a")->path;
  check_close(tail, run(1, {}, &saved, {}), 1e-5);
  check_close(tail, run(2, with(kFsdp2, packs_at_once(4)), &saved, {}), 1e-5);
  check_close(tail, run(2, with(with(kMegatron, kTensor), packs_at_once(8)), &saved, {}), 1e-5);
  const auto whole = train_layout(ring, {}, 6)[0].losses;
  CHECK((run(2, ring.changes, &saved, {}) == std::vector<double>(whole.begin() + 3, whole.end())));
}

}  // namespace parity_packs_test
