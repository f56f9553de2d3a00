// Compares plans of who writes what with the elements that ranks own: under random layouts, in real
// trainings, and for the largest recipe.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <random>

#include <fmt/ranges.h>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "checkpoint/declared_params.h"
#include "checkpoint/save_plan.h"
#include "test/support/comm_testing.h"
#include "test/support/train_testing.h"

namespace checkpoint_save_plan_test {

using namespace mtrain;
using namespace train_testing;
using namespace mtrain::checkpoint;

namespace {

// Every call returns one of the values.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[engine_() % values.size()];
  }
  bool coin() { return engine_() % 2 == 0; }

 private:
  std::mt19937_64 engine_;
};

// The model and the optimizer, which both layouts of a pair have.
Changes random_model(Dice& dice) {
  const int heads = dice.of({4, 8});
  Changes c{fmt::format("model.num_layers={}", dice.of({2, 4, 8})),
            fmt::format("model.hidden_size={}", heads * dice.of({2, 4})),
            fmt::format("model.num_attention_heads={}", heads),
            fmt::format("model.num_query_groups={}", dice.of({1, 2, 4})),
            fmt::format("model.ffn_hidden_size={}", dice.of({8, 16, 24})),
            "train.global_batch_size=96",
            "train.micro_batch_size=1",
            "dataset.seq_length=32"};
  if (dice.coin()) c.push_back("model.share_embeddings_and_output_weights=true");
  if (dice.coin()) c.push_back("model.add_bias_linear=true");
  if (dice.coin()) c.push_back("model.qk_layernorm=true");
  if (dice.of({0, 0, 1})) c.push_back("model.architecture=gpt2");
  if (dice.of({0, 0, 1})) c.push_back("optimizer.name=muon");
  const bool bf16 = dice.coin();
  if (bf16) c.push_back("mixed_precision.name=bf16_mixed");
  if (bf16 && dice.coin())
    c.insert(c.end(), {"mixed_precision.fp8=hybrid", "debug.emulate_fp8=true"});
  if (dice.of({0, 0, 1})) c.push_back("optimizer.master_weights=false");
  if (dice.of({0, 0, 1}))
    c.insert(c.end(), {"model.multi_latent_attention=true", "model.kv_lora_rank=12",
                       "model.qk_nope_head_dim=6", "model.qk_rope_head_dim=2", "model.v_head_dim=4",
                       fmt::format("model.num_query_groups={}", heads)});
  if (dice.of({0, 0, 1})) c.push_back(fmt::format("model.mtp_num_layers={}", dice.of({1, 2})));
  if (dice.coin()) return c;
  c.insert(c.end(),
           {fmt::format("model.moe.num_experts={}", dice.of({4, 8})), "model.moe.router_topk=2",
            "model.moe.ffn_hidden_size=8", "model.moe.load_balancing_type=none"});
  if (dice.coin()) c.push_back("model.moe.shared_expert_ffn_hidden_size=16");
  if (dice.coin()) c.push_back("model.moe.first_dense_layers=1");
  return c;
}

struct Layout {
  Changes changes;
  int64_t world = 1;
};

Layout random_layout(Dice& dice) {
  const int tp = dice.of({1, 1, 2, 4}), pp = dice.of({1, 1, 2, 4}), cp = dice.of({1, 1, 2}),
            dp = dice.of({1, 2, 3, 4}), vpp = pp > 1 ? dice.of({1, 1, 2}) : 1;
  Layout l{.changes = {fmt::format("distributed.tp_size={}", tp),
                       fmt::format("distributed.pp_size={}", pp),
                       fmt::format("distributed.cp_size={}", cp),
                       fmt::format("distributed.ep_size={}", dice.of({1, 1, 2, 4})),
                       fmt::format("ddp.bucket_size={}", dice.of({1000, 5000, 1000000}))},
           .world = int64_t(tp) * pp * cp * dp};
  if (pp > 1)
    l.changes.insert(l.changes.end(), {fmt::format("distributed.vpp_size={}", vpp),
                                       fmt::format("distributed.pipeline.pp_schedule={}",
                                                   vpp > 1 ? "interleaved_1f1b" : "1f1b")});
  if (tp > 1 && dice.coin()) l.changes.push_back("distributed.sequence_parallel=true");
  if (tp > 1 && dice.coin()) l.changes.push_back("distributed.expert_tp_size=1");
  const char* strategy = dice.of({"megatron_ddp", "megatron_fsdp", "fsdp2"});
  l.changes.push_back(fmt::format("distributed.strategy={}", strategy));
  if (strategy == std::string("megatron_ddp"))
    l.changes.push_back(fmt::format("ddp.use_distributed_optimizer={}", dice.coin()));
  if (strategy == std::string("megatron_fsdp"))
    l.changes.push_back(fmt::format("distributed.zero_dp_strategy={}", dice.of({0, 1, 2, 3})));
  if (strategy == std::string("fsdp2") && dice.coin())
    l.changes.push_back("distributed.dp_replicate_size=2");
  return l;
}

// Returns nothing if the rules refuse the recipe.
std::optional<RunPlan> plan_of(const Changes& model, const Layout& l, int64_t vocab) {
  try {
    const Recipe r = tiny(with(model, l.changes), l.world);
    return plan::make_plan(r, l.world, vocab);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

// For each saved tensor: which write has each of its elements. -1: none.
using Written = std::map<std::string, std::vector<int64_t>>;

// Applies the plans of all ranks. Checks that they write every element of the model once, and from
// the place at which the model's own arithmetic has the element.
Written write_all(const RunPlan& plan) {
  Written written;
  const std::vector<SavedKind> kinds = saved_kinds(plan);
  for (const SavedKind& kind : kinds)
    for (const spec::TensorSpec& t : spec::parameters(plan.model))
      if (kind.has(model::part_of(t)))
        written[t.name + kind.suffix].assign(size_t(t.full_shape.count()), -1);
  int64_t twice = 0, misplaced = 0;
  for (int64_t rank = 0; rank < plan.mesh.world(); ++rank) {
    const auto params = declare_params(plan, rank);
    std::map<const model::Parameter*, std::vector<model::ElementRun>> runs;
    for (const PlannedRun& r : save_plan(*params, copies_of_units(plan, rank), kinds)) {
      std::vector<int64_t>& tensor = written.at(r.parameter->name + kinds[r.kind].suffix);
      auto& own = runs[r.parameter];
      if (own.empty()) own = r.parameter->runs();
      int64_t here = r.here;
      for (int64_t i = 0; i < r.full.times; ++i)
        for (int64_t k = 0; k < r.full.count; ++k, ++here) {
          const int64_t full = r.full.first + i * r.full.stride + k;
          twice += tensor.at(size_t(full)) >= 0;
          tensor[size_t(full)] = rank;
          const auto run = std::ranges::upper_bound(own, here, {}, &model::ElementRun::here) - 1;
          misplaced += run->full + here - run->here != full || here >= run->here + run->count;
        }
    }
  }
  CHECK(twice == 0);
  CHECK(misplaced == 0);
  int64_t unwritten = 0;
  for (const auto& [name, elements] : written) unwritten += std::ranges::count(elements, -1);
  CHECK(unwritten == 0);
  return written;
}

// Checks that each rank that owns an element under this plan finds it in what was written.
void read_all(const RunPlan& plan, const Written& written) {
  int64_t found = 0, owned = 0;
  for (int64_t rank = 0; rank < plan.mesh.world(); ++rank) {
    const auto params = declare_params(plan, rank);
    for (const model::Parameter* p : params->params()) {
      const std::vector<int64_t>& tensor = written.at(p->name);
      REQUIRE(int64_t(tensor.size()) == p->full_shape().count());
      for (const model::OwnedPart& part : owned_parts(*p)) {
        owned += part.count;
        for (const StridedRun& r : full_runs(*p, part.in_param, part.count))
          for (int64_t i = 0; i < r.times; ++i)
            for (int64_t k = 0; k < r.count; ++k)
              found += tensor.at(size_t(r.first + i * r.stride + k)) >= 0;
      }
    }
  }
  CHECK(found == owned);
}

}  // namespace

TEST_CASE("a part of strided runs has the elements that walking them one by one gives") {
  const StridedRun run{.first = 5, .count = 3, .times = 4, .stride = 10};
  const auto element = [](const StridedRun& r, int64_t i) {
    return r.first + i / r.count * r.stride + i % r.count;
  };
  for (int64_t begin = 0; begin <= run.total(); ++begin)
    for (int64_t count = 0; begin + count <= run.total(); ++count) {
      CAPTURE(begin, count);
      const auto parts = part_of(run, begin, count);
      CHECK(parts.size() <= 3);
      int64_t at = begin;
      for (const StridedRun& part : parts)
        for (int64_t i = 0; i < part.total(); ++i, ++at)
          CHECK(element(part, i) == element(run, at));
      CHECK(at == begin + count);
    }
}

TEST_CASE("every element is written once under any layout, and found under any other") {
  constexpr size_t kLayouts = 4;  // of a model; each is read under the next two
  int pairs = 0;
  for (uint64_t seed = 1; pairs < 2000; ++seed) {
    REQUIRE(seed < 5000);
    Dice dice(seed);
    const Changes model = random_model(dice);
    const int64_t vocab = dice.of({23, 130, 200});
    std::vector<RunPlan> plans;
    std::vector<Layout> layouts;
    for (int tried = 0; tried < 40 && plans.size() < kLayouts; ++tried) {
      const Layout layout = random_layout(dice);
      if (auto plan = plan_of(model, layout, vocab)) {
        plans.push_back(*std::move(plan));
        layouts.push_back(layout);
      }
    }
    if (plans.size() < kLayouts) continue;
    for (size_t i = 0; i < kLayouts; ++i) {
      CAPTURE(seed, model, layouts[i].changes, layouts[i].world);
      const Written written = write_all(plans[i]);
      for (const size_t other : {(i + 1) % kLayouts, (i + 2) % kLayouts}) {
        CAPTURE(layouts[other].changes, layouts[other].world);
        read_all(plans[other], written);
        ++pairs;
      }
    }
  }
}

namespace {

// Returns how many elements of parameters whose names end with `suffix` each rank writes.
std::vector<double> loads(const RunPlan& plan, const std::string& suffix = "") {
  std::vector<double> all;
  for (int64_t rank = 0; rank < plan.mesh.world(); ++rank) {
    const auto params = declare_params(plan, rank);
    int64_t own = 0;
    for (const PlannedRun& r : save_plan(*params, copies_of_units(plan, rank), saved_kinds(plan)))
      if (r.parameter->name.ends_with(suffix)) own += r.full.total();
    all.push_back(double(own));
  }
  return all;
}

void check_even(const std::vector<double>& loads) {
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / double(loads.size());
  CHECK(*std::ranges::max_element(loads) <= 1.1 * mean);
}

}  // namespace

TEST_CASE("ranks that own the same elements share them evenly") {
  const auto plan = [](const Changes& changes, int64_t world) {
    return plan_of({"train.micro_batch_size=1", "train.global_batch_size=8"}, {changes, world}, 300)
        .value();
  };
  const Changes tied{"model.share_embeddings_and_output_weights=true", "distributed.pp_size=2",
                     "distributed.pipeline.pp_schedule=1f1b"},
      ddp{"distributed.strategy=megatron_ddp", "ddp.use_distributed_optimizer=false"};
  check_even(loads(plan(ddp, 8)));
  check_even(loads(plan(with(ddp, {"optimizer.name=muon"}), 8)));
  const std::vector<double> replicas =
      loads(plan(with(kFsdp2, {"distributed.dp_replicate_size=4"}), 8));
  check_even({replicas[0], replicas[2], replicas[4], replicas[6]});
  check_even({replicas[1], replicas[3], replicas[5], replicas[7]});
  // Each rank of tp has the norms, and two of four have the same key and value heads.
  const RunPlan tensor = plan({"distributed.tp_size=4"}, 4);
  check_even(loads(tensor, "norm.weight"));
  check_even(loads(tensor, "qkv.weight"));
  check_even(loads(plan(tied, 2), "embedding.weight"));
  check_even(loads(plan(with(tied, ddp), 8), "embedding.weight"));
  const std::vector<double> sharded = loads(plan(with(tied, kFsdp2), 8), "embedding.weight");
  for (size_t stage : {0, 1}) {
    const auto begin = sharded.begin() + int64_t(stage) * 4;
    CHECK(std::accumulate(begin, begin + 4, 0.0) <=
          1.1 * std::accumulate(sharded.begin(), sharded.end(), 0.0) / 2);
  }
}

namespace {

struct Training {
  int ranks;
  Changes changes;
};

std::vector<Training> trainings() {
  const Changes experts{"model.moe.num_experts=4", "model.moe.router_topk=2",
                        "model.moe.ffn_hidden_size=24",
                        "model.moe.shared_expert_ffn_hidden_size=16"};
  const Changes latent{"model.multi_latent_attention=true",
                       "model.num_query_groups=4",
                       "model.q_lora_rank=20",
                       "model.kv_lora_rank=24",
                       "model.qk_nope_head_dim=8",
                       "model.qk_rope_head_dim=4",
                       "model.v_head_dim=6"},
      further{"model.mtp_num_layers=2"},
      sequence{"distributed.tp_size=2", "distributed.sequence_parallel=true"};
  const Changes bf16{"mixed_precision.name=bf16_mixed"},
      fp8 = with(bf16, {"mixed_precision.fp8=hybrid", "debug.emulate_fp8=true"}),
      pipelined{"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"};
  return {
      {1, {}},
      {2, kMegatron},
      {3, with(kFsdp2, bf16)},
      {2, with(kFsdp2, fp8)},
      {2, with(kMegatron, fp8)},
      {4, with(kFsdp2, {"distributed.dp_replicate_size=2"})},
      {4, with(kFsdp2, {"distributed.tp_size=2", "distributed.cp_size=2"})},
      {4, {"distributed.tp_size=4", "model.qk_layernorm=true", "model.add_bias_linear=true"}},
      {2, with(pipelined, {"model.architecture=gpt2"})},
      {4, with(pipelined, with(kFsdp2, {"model.share_embeddings_and_output_weights=true"}))},
      {2, with(pipelined, {"model.num_layers=4", "distributed.vpp_size=2",
                           "distributed.pipeline.pp_schedule=interleaved_1f1b"})},
      {4, with(experts, with(kFsdp2, {"distributed.ep_size=2"}))},
      {4, with(experts, {"distributed.tp_size=2", "distributed.ep_size=2",
                         "distributed.sequence_parallel=true"})},
      {4, with(experts, {"distributed.tp_size=2", "distributed.ep_size=2",
                         "distributed.sequence_parallel=true", "distributed.expert_tp_size=1",
                         "distributed.strategy=megatron_ddp"})},
      {2, with(kMegatron, {"optimizer.name=muon"})},
      {2, with(kFsdp2, with(bf16, {"optimizer.master_weights=false"}))},
      {1, latent},
      {2, with(latent, with(sequence, {"~model.q_lora_rank"}))},
      {4, with(latent, with(sequence, kFsdp2))},
      {4, with(latent, with(kMegatron, {"distributed.tp_size=2", "optimizer.name=muon"}))},
      {1, with(further, {"model.mtp_use_repeated_layer=true"})},
      {2, with(further, sequence)},
      {4, with(further, with(kFsdp2, pipelined))},
      {2, with(further, with(pipelined, {"distributed.pipeline.layout=Et|tmmL"}))},
      {4, with(further,
               with(kMegatron, {"distributed.pp_size=4", "distributed.pipeline.pp_schedule=1f1b",
                                "distributed.pipeline.layout=Et|t|mm|L"}))},
      {2, with(further, with(pipelined, {"model.share_embeddings_and_output_weights=true"}))},
      {4, with(latent, with(further, with(experts, with(kFsdp2, {"distributed.ep_size=2"}))))},
      {4, with(latent,
               with(further,
                    with(experts, with(sequence, {"distributed.pp_size=2",
                                                  "distributed.pipeline.pp_schedule=1f1b"}))))}};
}

}  // namespace

TEST_CASE("the plan's parts are those that the ranks of a training own") {
  for (const Training& row : trainings()) {
    CAPTURE(row.ranks, row.changes);
    const Recipe r = tiny(
        with({"train.micro_batch_size=1", "train.global_batch_size=12"}, row.changes), row.ranks);
    run_ranks(row.ranks, "thread", [&](TestRank& rank) {
      train::Trainer t = make_trainer(rank.device, r, std::make_shared<CountingData>(), rank.world);
      const CheckpointParts parts = t.checkpoint_parts();
      const auto declared = declare_params(t.plan(), rank.rank());
      const auto real = parts.params.units(), planned = declared->units();
      std::vector<std::string> wrong;  // threads of ranks make no assertions of Catch
      const auto expect = [&](bool same, const std::string& what) {
        if (!same) wrong.push_back(what);
      };
      expect(real.size() == planned.size(), "the number of units");
      for (size_t u = 0; u < std::min(real.size(), planned.size()); ++u) {
        const model::ParamUnit &a = *real[u], &b = *planned[u];
        expect(a.id == b.id && a.count == b.count && a.in_fp32 == b.in_fp32, a.name);
        expect(a.params.size() == b.params.size(), a.name + ": parameters");
        for (size_t i = 0; i < std::min(a.params.size(), b.params.size()); ++i)
          expect(a.params[i]->name == b.params[i]->name &&
                     a.params[i]->begin == b.params[i]->begin &&
                     a.params[i]->shape == b.params[i]->shape &&
                     a.params[i]->copy == b.params[i]->copy &&
                     a.params[i]->runs() == b.params[i]->runs(),
                 a.params[i]->name);
        expect(a.owned.size() == b.owned.size(), a.name + ": owned ranges");
        for (size_t i = 0; i < std::min(a.owned.size(), b.owned.size()); ++i)
          expect(a.owned[i].begin == b.owned[i].begin && a.owned[i].count == b.owned[i].count,
                 fmt::format("{}: range {}", a.name, i));
      }
      const auto kinds = saved_kinds(t.plan());
      const auto state = parts.optimizer.state();
      expect(kinds.size() == state.size() + 1, "kinds of state");
      for (size_t k = 0; k < std::min(kinds.size() - 1, state.size()); ++k) {
        expect(kinds[k + 1].suffix == state[k].suffix, state[k].suffix);
        for (const model::Parameter* p : parts.params.params())
          expect(kinds[k + 1].has(*p) == state[k].values.has(*p), p->name + state[k].suffix);
      }
      if (!wrong.empty())
        throw std::runtime_error(fmt::format("rank {}: {}", rank.rank(), fmt::join(wrong, ", ")));
    });
  }
}

TEST_CASE("the plan of a rank of 16384 takes less than a second and 200 MB") {
  const std::string text =
      read_file(std::string(MTRAIN_SOURCE_DIR) + "/recipes/llama3_1_405b.yaml");
  Diagnostics diagnostics;
  const Recipe r = plan::load_recipe_text(interchange::model_source(), text, "r.yaml",
                                          {"train.device=cpu"}, diagnostics, 16384);
  diagnostics.throw_if_errors();
  const RunPlan plan = plan::make_plan(r, 16384, 128256);
  const auto memory = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;  // KiB
  };
  for (const int64_t rank : {0, 9001, 16383}) {
    const auto begin = std::chrono::steady_clock::now();
    const int64_t before = memory();
    const auto params = declare_params(plan, rank);
    const auto runs = save_plan(*params, copies_of_units(plan, rank), saved_kinds(plan));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    CHECK(took.count() < 1);
    CHECK(memory() - before < 200 * 1024);
    CHECK(runs.size() > 0);
    CHECK(runs.size() < 1000);
    int64_t bytes = 0;
    for (const PlannedRun& p : runs) bytes += 4 * p.full.total();
    INFO(fmt::format("rank {}: {} runs, {} bytes in {} s", rank, runs.size(), bytes, took.count()));
    // 12 bytes a parameter, over all ranks.
    CHECK(double(bytes) > 0.5 * 12 * plan.parameters.total() / 16384);
    CHECK(double(bytes) < 2 * 12 * plan.parameters.total() / 16384);
  }
}

}  // namespace checkpoint_save_plan_test
