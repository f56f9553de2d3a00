// Compares tensor and sequence parallelism with a single rank: losses, gradients, weights and
// checkpoints. Runs under the stream sanitizer.
#include <map>
#include <mutex>
#include <set>

#include <catch2/catch.hpp>

#include "run/run_checkpoint.h"
#include "storage/checkpoint_dir.h"
#include "test/support/comm_testing.h"
#include "test/support/temporary_folder.h"
#include "test/support/train_testing.h"
#include "train/trainer.h"
#include "train_pieces.h"

namespace parity_tensor_test {

using namespace mtrain;
using namespace train_testing;
namespace fs = std::filesystem;

namespace {

// Three of four ranks have rows, 128 each; the third has fewer.
constexpr int64_t kWords = 300;

struct Result {
  std::vector<double> losses, norms;
  double evaluation = 0;
  Pieces first_grads, weights;  // gradients only if they are not sharded
};

struct Setup {
  Recipe recipe;
  std::shared_ptr<const data::Dataset> data = std::make_shared<CountingData>(kWords);
  explicit Setup(const Changes& changes, int ranks = 1)
      : recipe(tiny(
            with({"model.hidden_size=64", "model.num_attention_heads=8", "model.num_query_groups=8",
                  "train.global_batch_size=4", "train.micro_batch_size=2", "optimizer.lr=3e-3"},
                 changes),
            ranks)) {}
};

Result train(const Setup& s, Device& device, comm::World world, int64_t steps) {
  train::Trainer t = make_trainer(device, s.recipe, s.data, std::move(world), kWords);
  const data::ValidationLoader validation(
      s.data, 5,
      {.micro_batch = 2, .dp_rank = t.data_parallel().rank(), .dp_size = t.data_parallel().size()});
  Result result;
  for (int64_t i = 0; i < steps; ++i) {
    const train::StepStats stats = t.step();
    result.losses.push_back(stats.loss);
    result.norms.push_back(stats.grad_norm);
    if (i == 0 && t.data_parallel().size() == 1)
      result.first_grads = pieces(t, [](model::ParamUnit& unit) { return unit.grad; });
    if (i == steps / 2) t.evaluate(validation);  // must not change the training
  }
  result.evaluation = t.evaluate(validation);
  result.weights =
      pieces(t, [&](model::ParamUnit& unit) { return full_master(t.data_parallel(), unit); });
  return result;
}

Result train_alone(const Changes& changes, int64_t steps) {
  const auto device = Device::cpu(1, {.stream_sanitizer = true});
  return train(Setup(changes), *device, comm::World::alone(), steps);
}

std::vector<Result> train_ranks(int ranks, const Changes& changes, int64_t steps,
                                const std::string& backend = "thread") {
  const Setup setup(changes, ranks);
  std::vector<Result> results(static_cast<size_t>(ranks));
  run_ranks(ranks, backend, [&](TestRank& rank) {
    results[size_t(rank.rank())] = train(setup, rank.device, rank.world, steps);
  });
  return results;
}

Changes layout(int tp, bool sequence, const Changes& more = {}) {
  return with({fmt::format("distributed.tp_size={}", tp),
               fmt::format("distributed.sequence_parallel={}", sequence)},
              more);
}

struct Model {
  const char* name;
  Changes changes;
};
const std::vector<Model> kModels{
    {"8 heads of 8", {}},
    {"8 of 4, tied",
     {"model.num_query_groups=4", "model.share_embeddings_and_output_weights=true"}},
    {"8 of 2, head norms, all biases",
     {"model.architecture=qwen3", "model.num_query_groups=2", "model.add_bias_linear=true",
      "model.add_qkv_bias=true"}},
    {"8 of 1, qkv bias", {"model.architecture=qwen2", "model.num_query_groups=1"}},
    {"biases of attention alone, gelu by erf",
     {"model.attention_bias=true", "model.activation=gelu", "model.num_query_groups=4"}},
    {"8 of 4, norms of outputs alone, and of all heads' queries",
     {"model.num_query_groups=4", "model.norm_placement=post", "model.qk_layernorm=true",
      "model.qk_layernorm_all_heads=true", "model.init_method_std=0.2"}},
    {"8 of 1, norms of inputs and outputs by 1 + weight, of all heads' queries, dropout",
     {"model.num_query_groups=1", "model.norm_placement=sandwich",
      "model.layernorm_zero_centered_gamma=true", "model.qk_layernorm=true",
      "model.qk_layernorm_all_heads=true", "model.hidden_dropout=0.1",
      "model.init_method_std=0.2"}},
    {"gpt2: plain MLP, learned positions, biases, tied, dropout",
     {"model.architecture=gpt2", "model.hidden_dropout=0.1", "model.embedding_dropout=0.1"}},
    {"8 of 4, tied, geglu, multipliers, capped logits",
     {"model.num_query_groups=4", "model.share_embeddings_and_output_weights=true",
      "model.activation=geglu", "model.embedding_multiplier=8", "model.final_logit_softcapping=0.5",
      "model.attention_multiplier=0.6", "model.residual_multiplier=0.4",
      "model.logits_scaling=3"}}};

const Changes kMegatron{"distributed.strategy=megatron_ddp", "ddp.bucket_size=3000"},
    kFsdp2{"distributed.strategy=fsdp2"};

Changes overlap(const std::string& products) {
  return {"comm_overlap.tp_comm_overlap=true",
          "comm_overlap.tp_comm_overlap_cfg={" + products + "}"};
}

}  // namespace

TEST_CASE("tensor parallelism trains as a single rank does") {
  for (const Model& model : kModels) {
    const Result one = train_alone(model.changes, compared_steps(20));
    struct Case {
      int ranks, tp;
      bool sequence;
      Changes changes;
    };
    for (const Case& c : std::vector<Case>{{2, 2, false, {}},
                                           {4, 2, true, kMegatron},
                                           {4, 4, false, kMegatron},
                                           {4, 4, true, {}},
                                           {4, 2, true, kFsdp2}}) {
      CAPTURE(model.name, c.ranks, c.tp, c.sequence, c.changes);
      const auto ranks = train_ranks(
          c.ranks, with(model.changes, layout(c.tp, c.sequence, c.changes)), compared_steps(20));
      // The numerics contract: losses to 1e-5 relative in fp32, gradients of step 1 to 1e-5.
      check_close(one.losses, ranks[0].losses, 1e-5);
      check_close(one.norms, ranks[0].norms, 1e-4);
      CHECK(ranks[0].evaluation == Approx(one.evaluation).epsilon(1e-5));
      for (const Result& other : ranks) {
        CHECK((other.losses == ranks[0].losses));
        CHECK((other.norms == ranks[0].norms));
        CHECK(other.evaluation == ranks[0].evaluation);
      }
      if (c.ranks == c.tp) check_tensors(one, ranks, &Result::first_grads, 1e-5);
      check_tensors(one, ranks, &Result::weights, 1e-2);  // Adam turns small gradients' signs
    }
  }
}

TEST_CASE("tensor parallelism in bf16, with recomputation, over every strategy and backend") {
  struct Case {
    int ranks, tp;
    bool sequence;
    Changes changes;
    std::string backend = "thread";
  };
  const Changes bf16{"mixed_precision.name=bf16_mixed"},
      zero2{"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2"},
      zero3{"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=3"},
      selective{"recompute.granularity=selective"}, full{"recompute.granularity=full"},
      rings = overlap("qkv_fprop: {}, proj_fprop: {}, fc1_dgrad: {method: ring_exchange}");
  for (const Case& c : std::vector<Case>{
           {2, 2, false, bf16},
           {4, 4, true, bf16},
           {4, 2, true, with(bf16, kFsdp2)},
           {4, 2, false, zero2},
           {4, 2, false, with(zero3, full)},
           {8, 4, true, with(kFsdp2, full)},
           {8, 2, true,
            with(kFsdp2, {"distributed.dp_replicate_size=2", "train.micro_batch_size=1"})},
           {4, 4, true, selective},
           {2, 2, true, full, "gloo"},
           {4, 2, true, kMegatron, "shared_memory"}}) {
    CAPTURE(c.ranks, c.tp, c.sequence, c.changes, c.backend);
    Changes model = kModels[2].changes;
    if (c.ranks == 8) model.push_back("train.global_batch_size=8");
    Changes alone = model;
    for (const std::string& change : c.changes)
      if (change.starts_with("mixed_precision")) alone.push_back(change);
    const Result one = train_alone(alone, compared_steps(10));
    const auto ranks = train_ranks(c.ranks, with(model, layout(c.tp, c.sequence, c.changes)),
                                   compared_steps(10), c.backend);
    // The numerics contract: 1e-5 relative in fp32, 2e-2 in bf16.
    check_close(one.losses, ranks[0].losses, c.changes[0] == bf16[0] ? 2e-2 : 1e-5);
    for (const auto& [name, piece] : one.weights) assemble(ranks, &Result::weights, name);
  }
}

TEST_CASE("a checkpoint of any tp resumes under any other") {
  const TemporaryFolder root;
  struct Case {
    int ranks;
    Changes changes;
  };
  const std::vector<Case> layouts{{1, {}},
                                  {4, layout(4, true)},
                                  {4, layout(2, false, kMegatron)},
                                  {4, layout(2, true, kFsdp2)}};
  const auto run = [&](const Case& c, const fs::path* from, const fs::path& to) {
    const Setup s(with(kModels[2].changes, c.changes), c.ranks);
    std::vector<double> losses;
    const auto as_rank = [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, s.recipe, s.data, rank.world, kWords);
      if (from) run::resume_run(t, *from);
      std::vector<double> own;
      for (int i = 0; i < 3; ++i) own.push_back(t.step().loss);
      if (!to.empty()) run::save_run(t, to);
      if (rank.rank() == 0) losses = own;
    };
    run_ranks(c.ranks, "thread", as_rank);
    return losses;
  };
  const auto straight = train_alone(kModels[2].changes, 6).losses;
  const std::vector<double> tail(straight.begin() + 3, straight.end());
  for (size_t i = 0; i < layouts.size(); ++i) {
    const fs::path folder = root.path / std::to_string(i);
    run(layouts[i], nullptr, folder);
    const auto saved = storage::find_latest(folder);
    REQUIRE(saved);
    for (size_t j = 0; j < layouts.size(); ++j) {
      CAPTURE(i, j);
      const auto again = run(layouts[j], &saved->path, {});
      check_close(tail, again, 1e-5);
      if (i != j || i == 0) continue;
      // Under the same layout, losses are equal bit by bit.
      const auto whole =
          train_ranks(layouts[i].ranks, with(kModels[2].changes, layouts[i].changes), 6)[0].losses;
      CHECK((again == std::vector<double>(whole.begin() + 3, whole.end())));
    }
  }
}

TEST_CASE("the tensor-parallel rank that first has a value that is not finite reports its place") {
  const bool sequence = GENERATE(false, true);
  // The fault is in a parameter, and the error names its place in the layout-free tensor. Or an
  // activation overflows, which other ranks receive.
  const bool parameter = GENERATE(true, false);
  CAPTURE(sequence, parameter);
  const Setup s(layout(2, sequence, kFsdp2), 4);
  const std::string name = "layers.1.attention.qkv.weight";
  std::vector<std::string> messages(4);
  int64_t element = 0;
  run_ranks(4, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, s.recipe, s.data, rank.world, kWords);
    t.change_weights([&] {
      // Key heads of the second rank of tp, in both groups of data parallelism.
      if (t.tensor_parallel().rank() != 1) return;
      model::Parameter* p = t.params().find(name);
      std::vector<float> values(size_t(p->full_shape().count()), 3e38f);
      const int64_t at = p->runs()[1].full + 5;
      if (parameter) values.assign(values.size(), 0), values[size_t(at)] = std::nanf("");
      if (rank.rank() == 1) element = at;
      t.params().set_master(t.compute(), *p, values);
    });
    try {
      t.step();
    } catch (const RunError& e) {
      messages[size_t(rank.rank())] = "run: " + e.message();
    } catch (const CommError& e) {
      messages[size_t(rank.rank())] = "comm: " + e.message();
    }
  });
  CAPTURE(messages[0], messages[1], messages[2], messages[3]);
  const auto says = [&](int rank, const std::string& text) {
    CHECK(messages[size_t(rank)].find(text) != std::string::npos);
  };
  if (parameter) {
    int found = 0;  // sharded over data parallelism: one owner has it
    for (const int rank : {1, 3})
      found += messages[size_t(rank)].find(
                   fmt::format("parameter {} at element {}", name, element)) != std::string::npos;
    CHECK(found == 1);
  } else {
    for (const int rank : {1, 3}) {
      says(rank, "run: step 1");
      says(rank, "matmul_qkv_fwd");
      says(rank, "layers.1.attention");
    }
  }
  for (const int rank : {0, 2}) says(rank, "comm: step 1");
}

namespace {
std::string each(const Changes& products, const std::string& how) {
  std::string text;
  for (const std::string& p : products)
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", p, how);
  return text;
}
const Changes kGathers{"qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad"},
    kScatters{"proj_fprop", "fc2_fprop"}, kInputs{"qkv_dgrad", "fc1_dgrad"},
    kWeights{"qkv_wgrad", "fc1_wgrad"};
}  // namespace

// The bits are equal where sums run in the same order: through shared memory a reduce-scatter and a
// ring sum alike, and the rows of a GEMM do not depend on each other.
TEST_CASE("overlap changes when activations travel, and no bit of them") {
  const auto off = [](const Changes& products) { return each(products, "none"); };
  struct Case {
    const char* what;
    std::string products;
    int min_tp = 2;
  };
  const std::string inputs_off = off(kInputs) + ", " + off(kWeights);
  const std::vector<Case> cases{
      {"bulk", off(kGathers) + ", " + off(kScatters)},
      {"bulk, gathers alone", off(kGathers) + ", " + off(kScatters) + ", " + off(kWeights)},
      {"bulk, scatters alone", off(kGathers) + ", " + off(kScatters) + ", " + off(kInputs)},
      {"gathering rings",
       each(kGathers, "{method: ring_exchange}") + ", " + off(kScatters) + ", " + inputs_off},
      {"gathering rings of two chunks",
       each(kGathers, "{aggregate: true}") + ", " + off(kScatters) + ", " + inputs_off, 4},
      {"scattering rings",
       each(kScatters, "{method: ring_exchange}") + ", " + off(kGathers) + ", " + inputs_off},
      {"pipelines of three",
       each(kScatters, "{num_splits: 3}") + ", " + off(kGathers) + ", " + inputs_off},
      {"rings everywhere", each(kGathers, "{method: ring_exchange}") + ", " +
                               each(kScatters, "{method: ring_exchange}") + ", " +
                               each(kInputs, "{method: ring_exchange}")},
      {"pipelines everywhere", each(kGathers, "{method: ring_exchange}") + ", " +
                                   each(kScatters, "{num_splits: 2}") + ", " +
                                   each(kInputs, "{method: pipeline, num_splits: 5}")}};
  for (const char* precision : {"fp32", "bf16_mixed"})
    for (const int tp : {2, 4}) {
      const Changes base = with(with(kModels[2].changes, layout(tp, true)),
                                {fmt::format("mixed_precision.name={}", precision)});
      const auto without = train_ranks(tp, base, 4);
      for (const Case& c : cases) {
        if (tp < c.min_tp) continue;
        CAPTURE(precision, tp, c.what);
        const auto results = train_ranks(tp, with(base, overlap(c.products)), 4);
        for (size_t rank = 0; rank < results.size(); ++rank) {
          CHECK((results[rank].losses == without[rank].losses));
          CHECK(results[rank].evaluation == without[rank].evaluation);
          for (const auto& [name, piece] : without[rank].weights) {
            INFO(name << " of rank " << rank);
            CHECK((results[rank].weights.at(name).values == piece.values));
          }
        }
      }
    }
}

namespace {
// Counts launches by stream and name.
class Launches : public device::TimingSink {
 public:
  void record(const device::Timing& t) override {
    const std::lock_guard lock(mutex_);
    ++count_[fmt::format("{} {}", stream_name(t.stream), t.name)];
  }
  int64_t of(const char* what) const {
    const auto at = count_.find(what);
    return at == count_.end() ? 0 : at->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int64_t> count_;
};
}  // namespace

TEST_CASE("each GEMM is split as its method says") {
  constexpr int kTp = 4, kLayers = 2, kMicroBatches = 2;
  const auto count = [&](const std::string& products, const char* what) {
    const Setup s(with(layout(kTp, true), overlap(products)), kTp);
    std::vector<int64_t> counts(kTp);
    run_ranks(kTp, "thread", [&](TestRank& rank) {
      Launches launches;
      train::Trainer t = make_trainer(rank.device, s.recipe, s.data, rank.world, kWords);
      rank.device.set_timing_sink(&launches);
      t.step();
      rank.device.set_timing_sink(nullptr);
      counts[size_t(rank.rank())] = launches.of(what);
    });
    for (const int64_t c : counts) CHECK(c == counts[0]);
    return counts[0] / kLayers / kMicroBatches;
  };
  const std::string off = each(kGathers, "none") + ", " + each(kScatters, "none") + ", " +
                          each(kInputs, "none") + ", " + each(kWeights, "none");
  const auto only = [&](const std::string& product, const std::string& how) {
    std::string products = off;
    return products.replace(products.find(product + ": none"), product.size() + 6,
                            product + ": " + how);
  };
  CHECK(count(off, "tp exchange") == 0);
  CHECK(count(off, "compute matmul_qkv_fwd") == 1);
  CHECK(count(only("qkv_fprop", "{}"), "tp exchange") == kTp - 1);
  CHECK(count(only("qkv_fprop", "{}"), "compute matmul_qkv_fwd") == kTp);
  CHECK(count(only("fc1_fprop", "{aggregate: true}"), "tp exchange") == kTp / 2);
  CHECK(count(only("fc1_fprop", "{aggregate: true}"), "compute matmul_fc1_fwd") == kTp / 2);
  CHECK(count(only("fc2_dgrad", "{}"), "compute matmul_fc2_dgrad") == kTp);
  CHECK(count(only("fc2_fprop", "{method: ring_exchange}"), "compute matmul_fc2_fwd") == kTp);
  CHECK(count(only("proj_fprop", "{num_splits: 3}"), "compute matmul_proj_fwd") == 3);
  CHECK(count(only("fc1_dgrad", "{method: pipeline, num_splits: 2}"), "compute matmul_fc1_dgrad") ==
        2);
  CHECK(count(only("fc1_dgrad", "{method: bulk}"), "compute matmul_fc1_dgrad") == 1);
}

TEST_CASE("a GEMM leaves the multiprocessors that its overlap names") {
  constexpr int kTp = 2;
  const Setup s(with(layout(kTp, true),
                     overlap("qkv_fprop: {num_sm: 3, set_sm_margin: true}, fc2_fprop: {num_sm: 5}, "
                             "fc1_dgrad: {num_sm: 7}, fc1_wgrad: {set_sm_margin: false}, "
                             "proj_dgrad: {num_sm: 9, set_sm_margin: true}")),
                kTp);
  using Margins = std::map<std::string, std::set<int64_t>>;
  std::vector<Margins> seen(kTp);
  run_ranks(kTp, "thread", [&](TestRank& rank) {
    train::Trainer t = make_trainer(rank.device, s.recipe, s.data, rank.world, kWords);
    rank.device.set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
      const std::string name = info.name;
      if (name.starts_with("matmul_"))
        seen[size_t(rank.rank())][name].insert(stream.device().gemm_sm_margin());
    });
    t.step();
    rank.device.set_launch_check({});
  });
  for (Margins& margins : seen) {
    const auto is = [&](const char* gemm, int64_t margin) {
      INFO(gemm);
      CHECK((margins[std::string("matmul_") + gemm] == std::set<int64_t>{margin}));
    };
    is("qkv_fwd", 3), is("fc2_fwd", 5), is("fc1_dgrad", 7), is("proj_dgrad", 9);
    is("fc1_wgrad", 0), is("fc1_fwd", 0), is("proj_fwd", 0), is("fc2_wgrad", 0);
  }
}

TEST_CASE("tensor, sequence, context and data parallelism together") {
  const std::vector<Changes> models{
      {"model.num_query_groups=4", "model.architecture=qwen3", "model.hidden_dropout=0.1"},
      {"model.architecture=gpt2", "model.num_query_groups=8", "model.hidden_dropout=0.1",
       "model.embedding_dropout=0.1"}};
  const std::vector<Changes> strategies{{"distributed.strategy=megatron_ddp"},
                                        {"distributed.strategy=fsdp2"}};
  size_t turn = 0;
  for (const Changes& model : models) {
    // Dropout is numbered by micro-batch.
    const Result alone = train_alone(with(model, {"train.micro_batch_size=1"}), compared_steps(20));
    for (const char* type : {"p2p", "all_gather", "a2a"})
      for (const int dp : {1, 2}) {
        const bool sequence = turn % 3 != 0;
        const Changes layout =
            with(with(model, strategies[turn++ % 2]),
                 {"distributed.tp_size=2", "distributed.cp_size=2",
                  fmt::format("distributed.cp_comm_type={}", type), "train.micro_batch_size=1",
                  fmt::format("distributed.sequence_parallel={}", sequence),
                  fmt::format("comm_overlap.tp_comm_overlap={}", sequence)});
        CAPTURE(type, dp, sequence, model[0]);
        const auto ranks = train_ranks(4 * dp, layout, compared_steps(20));
        check_close(alone.losses, ranks[0].losses, 1e-5);
        check_close(alone.norms, ranks[0].norms, 1e-4);
        CHECK(ranks[0].evaluation == Approx(alone.evaluation).epsilon(1e-5));
        for (const Result& r : ranks) CHECK((r.losses == ranks[0].losses));
      }
  }
}

}  // namespace parity_tensor_test
