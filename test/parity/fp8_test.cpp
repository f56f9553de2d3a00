// Tests trainings whose linears multiply in 8 bits, as a CPU emulates them.
#include <algorithm>
#include <map>
#include <sstream>

#include "run/run_checkpoint.h"
#include "test/support/temporary_folder.h"
#include "train_fp8_testing.h"

namespace parity_fp8_test {

using namespace mtrain;
using namespace train_testing;

namespace {

// The bound of losses, between 8 bits and bf16 and between layouts; they differ by up to 2e-3.
constexpr double kLosses = 1e-2;
// The bound of the gradients of step 1. Elements are off by up to 1/16 in e4m3 and 1/8 in e5m2; the
// gradients of whole parameters differ by up to 0.12.
constexpr double kGradients = 0.15;

// Name -> scale and history.
std::map<std::string, std::string> by_name(const std::string& state) {
  std::map<std::string, std::string> lines;
  std::istringstream text(state);
  for (std::string name, rest; text >> name && std::getline(text, rest);) lines[name] = rest;
  return lines;
}

std::vector<std::string> scales_of_ranks(const Changes& changes, int ranks, int64_t steps) {
  const Recipe r = tiny(changes, ranks);
  std::vector<std::string> states(static_cast<size_t>(ranks));
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    for (int64_t i = 0; i < steps; ++i) t.step();
    states[size_t(rank.rank())] = t.quantizer()->state(t.compute());
  });
  return states;
}

}  // namespace

TEST_CASE("50 steps in 8 bits follow bf16") {
  const Result reference = train_alone(kBf16, 50);
  CHECK(reference.losses.back() < 0.5 * reference.losses.front());
  for (const Changes& changes :
       {kTensorwise, kDelayed, with(kTensorwise, {"mixed_precision.fp8=e4m3"}),
        fp8({"mixed_precision.fp8_recipe=delayed", "mixed_precision.fp8_margin=1"})}) {
    const Result result = train_alone(changes, 50);
    check_close(reference.losses, result.losses, kLosses);
    check_gradients(reference, result, kGradients);
    // The losses differ from bf16's, so the GEMMs do run in 8 bits.
    CHECK(result.losses[0] != reference.losses[0]);
  }
}

TEST_CASE("gradients in 8 bits are those after the multiplier of a segment's output") {
  const Changes multiplied{"model.residual_multiplier=0.22"};
  const Result reference = train_alone(with(kBf16, multiplied), 4);
  for (const Changes& changes : {kTensorwise, kDelayed}) {
    const Result result = train_alone(with(changes, multiplied), 4);
    check_gradients(reference, result, kGradients);
    for (size_t step = 0; step < 4; ++step)
      CHECK(result.norms[step] == Approx(reference.norms[step]).epsilon(kGradients));
  }
}

TEST_CASE("e4m3 and hybrid and delayed scales are different trainings") {
  const auto hybrid = Run(kTensorwise).losses(4), delayed = Run(kDelayed).losses(4);
  const auto e4m3 = Run(with(kTensorwise, {"mixed_precision.fp8=e4m3"})).losses(4);
  CHECK(e4m3[0] == hybrid[0]);  // forward is the same
  CHECK(e4m3[1] != hybrid[1]);
  CHECK(delayed[0] == hybrid[0]);  // without a history the first step takes current scales
  CHECK(delayed != hybrid);
}

TEST_CASE("delayed scales resume with the same bits, into other histories as far as they reach") {
  const TemporaryFolder root;
  Run straight(kDelayed), first(kDelayed), second(kDelayed);
  const auto reference = straight.losses(9);
  first.losses(6);  // more than the length of the history, which is a ring
  const auto folder = run::save_run(first.trainer, root.path);
  second.losses(2);  // its own steps must not matter
  run::resume_run(second.trainer, folder);
  CHECK(second.scales() == first.scales());
  CHECK(second.losses(3) == std::vector<double>(reference.begin() + 6, reference.end()));
  CHECK(second.scales() == straight.scales());
  Run shorter(with(kDelayed, {"mixed_precision.fp8_amax_history_len=2"})),
      longer(with(kDelayed, {"mixed_precision.fp8_amax_history_len=8"})), without(kTensorwise);
  for (Run* other : {&shorter, &longer, &without}) {
    run::resume_run(other->trainer, folder);
    CHECK(other->losses(1)[0] == Approx(reference[6]).epsilon(kLosses));
  }
}

TEST_CASE("delayed training resumes from a checkpoint of bf16") {
  const TemporaryFolder root;
  Run plain(kBf16), delayed(kDelayed);
  plain.losses(3);
  const auto folder = run::save_run(plain.trainer, root.path);
  run::resume_run(delayed.trainer, folder);
  check_close(plain.losses(3), delayed.losses(3), kLosses);
}

TEST_CASE("recomputation and evaluation leave no trace in 8 bits") {
  const auto reference = Run(kDelayed).losses(5);
  for (const char* granularity : {"selective", "full"}) {
    Changes changes = with(kDelayed, {std::string("recompute.granularity=") + granularity});
    if (*granularity == 'f')
      changes = with(changes, {"recompute.method=uniform", "recompute.num_layers=1"});
    CHECK(Run(changes).losses(5) == reference);
  }
  CHECK(train_alone(kDelayed, 5).losses == reference);  // evaluates in between
}

TEST_CASE("8-bit GEMMs of odd numbers of tokens are padded") {
  const auto reference = Run(kTensorwise).losses(5);
  check_close(reference, Run(with(kTensorwise, {"train.micro_batch_size=1"})).losses(5), kLosses);
}

TEST_CASE(
    "rows that are shorter than their padding train in 8 bits, and on more ranks than tokens") {
  // Rows of at most two tokens are padded to 16 for 8-bit GEMMs, and to four on four ranks.
  constexpr int64_t kLongest = 2;
  const auto data = std::make_shared<ShortRows>(kLongest);
  const Changes rows = with(rows_of(kLongest), {"model.num_query_groups=4"}),
                tensor{"distributed.strategy=megatron_ddp", "distributed.tp_size=4",
                       "distributed.sequence_parallel=true"};
  for (const Changes& more : {Changes{}, Changes{"model.architecture=gpt2"}}) {
    CAPTURE(more);
    const Changes bf16 = with(with(kBf16, rows), more);
    const Result one = train_alone(bf16, 4, data);
    for (const Changes& scales : {kTensorwise, kDelayed})
      check_close(one.losses, train_alone(with(scales, with(rows, more)), 4, data).losses, kLosses);
    for (const Result& r : train_ranks(4, with(bf16, tensor), 4, "thread", data))
      check_close(one.losses, r.losses, kLosses);
  }
}

TEST_CASE("layouts in 8 bits give the losses of one rank") {
  const std::vector<Changes> layouts{
      {"distributed.strategy=ddp"},
      {"distributed.strategy=fsdp2"},
      {"distributed.strategy=fsdp2", "distributed.tp_size=2"},
      {"distributed.strategy=fsdp2", "distributed.tp_size=2", "distributed.sequence_parallel=true",
       "comm_overlap.tp_comm_overlap=true"},
      {"distributed.strategy=fsdp2", "distributed.cp_size=2"},
      {"distributed.strategy=megatron_ddp", "distributed.pp_size=2", "distributed.pipeline={}",
       "train.micro_batch_size=3"}};
  for (const Changes& recipe : {kTensorwise, kDelayed}) {
    const Result one = train_alone(recipe, 10);
    for (const Changes& layout : layouts) {
      Changes changes = with(recipe, layout);
      const bool data = layout.size() == 1;
      if (data) changes = with(changes, {"train.micro_batch_size=3"});
      INFO(layout.back());
      const auto ranks = train_ranks(2, changes, 10);
      // The numerics contract of bf16 allows 2e-2.
      for (const Result& r : ranks) check_close(one.losses, r.losses, kLosses);
      if (data) check_gradients(one, ranks[0], kGradients);
    }
  }
}

TEST_CASE("delayed scales are of whole tensors: the same on all ranks, and one rank's") {
  Run one(kDelayed);
  one.losses(1);
  const auto alone = by_name(one.scales());
  REQUIRE(alone.size() == 2 * 4 * 3);  // layers, linears, roles
  const auto near = [](const std::string& a, const std::string& b) {
    std::istringstream x(a), y(b);
    std::string v, w;
    x >> v, y >> w;
    return std::abs(std::stod(v) / std::stod(w) - 1) < 0.1;  // rounding, in bf16 and 8 bits
  };
  for (const Changes& layout : {Changes{"distributed.strategy=ddp", "train.micro_batch_size=3"},
                                Changes{"distributed.strategy=fsdp2", "distributed.tp_size=2"}}) {
    const auto ranks = scales_of_ranks(with(kDelayed, layout), 2, 1);
    CHECK(ranks[0] == ranks[1]);
    const auto lines = by_name(ranks[0]);
    REQUIRE(lines.size() == alone.size());
    for (const auto& [name, line] : alone) {
      INFO(name);
      if (name.ends_with(".weight")) CHECK(lines.at(name) == line);
      CHECK(near(lines.at(name), line));
    }
  }
}

TEST_CASE("a pipeline's checkpoint has the scales of all its layers") {
  const TemporaryFolder root;
  const Changes layout{"distributed.strategy=megatron_ddp", "distributed.pp_size=2",
                       "distributed.pipeline={}", "train.micro_batch_size=3"};
  const Recipe r = tiny(with(kDelayed, layout), 2);
  std::filesystem::path folder;
  std::vector<double> losses;
  run_ranks(2, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
    for (int64_t i = 0; i < 3; ++i) t.step();
    const auto saved = run::save_run(t, root.path);
    const double next = t.step().loss;
    if (rank.rank() == 0) folder = saved;
    if (rank.rank() == 1) losses.push_back(next);
  });
  Run one(with(kDelayed, {"train.micro_batch_size=3"}));
  run::resume_run(one.trainer, folder);
  CHECK(by_name(one.scales()).size() == 2 * 4 * 3);
  check_close(losses, one.losses(1), kLosses);
}

}  // namespace parity_fp8_test
