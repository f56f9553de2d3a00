// Compares layouts of tensor, sequence, context and data parallelism with a single rank. Some
// layout that trains combines every three values of different factors. Runs under the stream
// sanitizer.
#include <algorithm>
#include <array>
#include <map>

#include <catch2/catch.hpp>

#include "covering.h"
#include "interchange/model_source.h"
#include "test/support/comm_testing.h"
#include "test/support/train_testing.h"
#include "train_pieces.h"

namespace parity_layout_matrix_test {

using namespace mtrain;
using namespace train_testing;

namespace {

enum Factor {
  kTp,
  kSequence,
  kCp,
  kType,
  kDp,
  kStrategy,
  kKvHeads,
  kPacked,
  kBf16,
  kOverlap,
  kFactors
};
using Choice = Combination<kFactors>;

constexpr std::array<int, 3> kSizes{1, 2, 4}, kGroups{8, 4, 2};
enum Type { p2p, all_gather, a2a, a2a_p2p, by_layer };
constexpr std::array kTypes{"p2p", "all_gather", "a2a", "a2a+p2p", "by layer"};
constexpr std::array kStrategies{"megatron_ddp", "megatron_fsdp", "fsdp2"};
constexpr Choice kValues{3, 2, 3, kTypes.size(), 2, kStrategies.size(), 3, 2, 2, 2};
constexpr int64_t kHeads = 8, kLength = 32;

int tp(const Choice& l) { return kSizes[size_t(l[kTp])]; }
int cp(const Choice& l) { return kSizes[size_t(l[kCp])]; }
int ranks(const Choice& l) { return tp(l) * cp(l) * (1 + l[kDp]); }

std::string describe(const Choice& l) {
  return fmt::format("tp {}{}, cp {} ({}), dp {}, {}, kv heads {}{}{}, overlap {}", tp(l),
                     l[kSequence] ? " sp" : "", cp(l), kTypes[size_t(l[kType])], 1 + l[kDp],
                     kStrategies[size_t(l[kStrategy])], kGroups[size_t(l[kKvHeads])],
                     l[kPacked] ? ", packed" : "", l[kBf16] ? ", bf16" : "",
                     l[kOverlap] ? "on" : "off");
}

// Returns the number of ranks that exchange heads; it must divide the heads.
int exchanging(const Choice& l) {
  switch (l[kType]) {
    case a2a: return cp(l);
    case a2a_p2p: return 2;
    case by_layer: return 2;  // a2a on two ranks, a2a+p2p on four
    default: return 1;
  }
}

// Returns whether the rules of recipes allow the layout.
bool legal(const Choice& l) {
  const int kv = std::max(1, kGroups[size_t(l[kKvHeads])] / tp(l));
  if (kStrategies[size_t(l[kStrategy])] == std::string("megatron_fsdp") && l[kSequence])
    return false;
  return kHeads / tp(l) % exchanging(l) == 0 && kv % exchanging(l) == 0;
}

// Returns whether the layout is allowed and small enough for a test, and each of its choices has an
// effect.
bool worth_training(const Choice& l) {
  return legal(l) && ranks(l) > 1 && ranks(l) <= 16 && (tp(l) > 1 || !l[kSequence]) &&
         (cp(l) > 1 || l[kType] == p2p) && (l[kSequence] || cp(l) > 1 || !l[kOverlap]);
}

// Layouts with all parallelisms at once come first.
std::vector<Choice> covering_layouts() {
  return covering_choices(kValues, 3,
                          {{1, 0, 1, p2p, 0, 0, 0, 0, 0, 1},         // tp 2 x cp 2
                           {1, 1, 2, all_gather, 0, 2, 1, 0, 0, 1},  // tp 2 sp x cp 4
                           {2, 1, 1, p2p, 1, 0, 1, 0, 0, 1},         // tp 4 sp x cp 2 x dp 2
                           {2, 1, 1, a2a, 0, 0, 0, 1, 0, 1}},        // packed, tp 4 sp x cp 2
                          worth_training, ranks);
}

Changes model_of(const Choice& l) {
  Changes c{"model.hidden_size=64",
            "model.num_attention_heads=8",
            "optimizer.lr=3e-3",
            fmt::format("dataset.seq_length={}", kLength),
            fmt::format("model.num_query_groups={}", kGroups[size_t(l[kKvHeads])]),
            fmt::format("mixed_precision.name={}", l[kBf16] ? "bf16_mixed" : "fp32")};
  // Two samples or packs at once.
  c.push_back("train.micro_batch_size=2");
  c.push_back("train.global_batch_size=4");
  if (l[kPacked]) c.push_back(fmt::format("packed_sequence.packed_sequence_size={}", kLength));
  return c;
}

Changes changes_of(const Choice& l) {
  const std::string type = l[kType] != by_layer ? kTypes[size_t(l[kType])]
                           : cp(l) == 4         ? "[a2a+p2p,all_gather]"
                                                : "[a2a,p2p]";
  Changes c{fmt::format("distributed.tp_size={}", tp(l)),
            fmt::format("distributed.cp_size={}", cp(l)), "distributed.cp_comm_type=" + type,
            fmt::format("distributed.strategy={}", kStrategies[size_t(l[kStrategy])])};
  if (type.find("a2a+p2p") != std::string::npos)
    c.push_back(fmt::format("distributed.hierarchical_context_parallel_sizes=[2,{}]", cp(l) / 2));
  if (l[kSequence]) c.push_back("distributed.sequence_parallel=true");
  // GEMMs of so few rows are split only on request.
  if (l[kSequence] && l[kOverlap]) {
    c.push_back("comm_overlap.tp_comm_overlap=true");
    c.push_back(
        "comm_overlap.tp_comm_overlap_cfg={qkv_fprop: {}, fc1_fprop: {}, proj_fprop: {num_splits: "
        "2}, fc2_fprop: {method: ring_exchange}, proj_dgrad: {}, fc2_dgrad: {}}");
  }
  // A request for it is an error if a rank has one kv head to exchange.
  if (cp(l) > 1 && !l[kOverlap]) c.push_back("comm_overlap.cp_overlap=false");
  return c;
}

struct Result {
  std::vector<double> losses, norms;
  Pieces gradients;  // gradients of step 1, clipped, times 1 - beta
};

Result train_all(const Changes& changes, const Choice& l, Device& device, comm::World world,
                 int64_t steps) {
  const Recipe r = tiny(changes, world.size());
  std::shared_ptr<const data::Dataset> data;
  if (l[kPacked])
    data = std::make_shared<PackedCountingData>(kVocab, kLength);
  else
    data = std::make_shared<CountingData>(kVocab, kLength);
  train::Trainer t = make_trainer(device, r, data, std::move(world));
  Result result;
  for (int64_t i = 0; i < steps; ++i) {
    const train::StepStats s = t.step();
    result.losses.push_back(s.loss);
    result.norms.push_back(s.grad_norm);
    if (i == 0)
      result.gradients = pieces(t, [&](model::ParamUnit& unit) {
        return t.data_parallel().gather_unit(
            unit, t.optimizer().state()[0].values.own(t.compute(), unit));
      });
  }
  return result;
}

std::vector<Result> train_ranks(const Choice& l, int64_t steps) {
  Changes changes = model_of(l);
  for (const std::string& change : changes_of(l)) changes.push_back(change);
  std::vector<Result> results(size_t(ranks(l)));
  run_ranks(ranks(l), "thread", [&](TestRank& rank) {
    results[size_t(rank.rank())] = train_all(changes, l, rank.device, rank.world, steps);
  });
  return results;
}

}  // namespace

TEST_CASE("every three choices of a layout meet in one that trains as a single rank does") {
  // Many ranks share few cores, so only the smaller layouts make the steps of the numerics
  // contract.
  const auto steps = [](const Choice& l) {
    return compared_steps(ranks(l) <= 4 ? 20 : ranks(l) <= 8 ? 10 : 5);
  };
  std::map<Changes, Result> alone;
  for (const Choice& l : covering_layouts()) {
    INFO(describe(l));
    const Changes model = model_of(l);
    if (!alone.count(model)) {
      const auto device = Device::cpu(1, {.stream_sanitizer = true});
      alone[model] = train_all(model, l, *device, comm::World::alone(), 20);
    }
    Result one = alone[model];
    one.losses.resize(size_t(steps(l))), one.norms.resize(size_t(steps(l)));
    const auto results = train_ranks(l, steps(l));
    // The numerics contract: losses to 1e-5 in fp32 and 2e-2 in bf16, gradients of step 1 to 1e-5.
    check_close(one.losses, results[0].losses, l[kBf16] ? 2e-2 : 1e-5);
    for (const Result& other : results) CHECK((other.losses == results[0].losses));
    if (l[kOverlap]) {
      // Ranks that are threads always sum in the same order: overlap changes no bit.
      Choice off = l;
      off[kOverlap] = 0;
      const auto without = train_ranks(off, 2);
      CHECK(without[0].losses[0] == results[0].losses[0]);
      CHECK(without[0].losses[1] == results[0].losses[1]);
      for (const auto& [name, piece] : results[0].gradients)
        CHECK((without[0].gradients.at(name).values == piece.values));
    }
    if (l[kBf16]) continue;
    check_close(one.norms, results[0].norms, 1e-4);
    check_tensors(one, results, &Result::gradients, 1e-5);
  }
}

TEST_CASE("recipes are refused exactly where a layout cannot be") {
  for_each_choice(kValues, [](const Choice& l) {
    // The rules do not depend on these factors.
    if (l[kDp] || l[kBf16] || l[kOverlap] || l[kPacked]) return;
    if (cp(l) == 1 && l[kType] != p2p) return;
    Changes changes = model_of(l);
    for (const std::string& change : changes_of(l)) changes.push_back(change);
    Diagnostics diagnostics;
    changes.push_back("dataset.train=unused");
    plan::load_recipe_text(interchange::model_source(), "model: {num_layers: 2}\n", "matrix",
                           changes, diagnostics, ranks(l));
    INFO(describe(l) << "\n" << diagnostics.text(recipe::Severity::error));
    CHECK(diagnostics.has_errors() != legal(l));
  });
}

}  // namespace parity_layout_matrix_test
