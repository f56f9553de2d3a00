// The list of a model's tensors is what the model declares, for each family and under each layout.
#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "interchange/hf_folder.h"
#include "model/gpt.h"
#include "parallel/apply_parallelism.h"
#include "recipe/model_spec.h"
#include "spec/tensors.h"
#include "test/support/comm_testing.h"
#include "test/support/interchange_testing.h"
#include "train/router_state.h"

namespace interchange_declared_tensors_test {

using namespace mtrain;
using model::ParamSpec;

namespace {

constexpr int64_t kLength = 4;

spec::ModelSpec imported(const std::string& name) {
  const recipe::ModelConfig model = interchange::open_hf_folder(golden_hf() / name).recipe.model;
  return recipe::model_spec(model);
}

// Returns what a rank's stage declares, without copies of what another stage saves.
std::vector<ParamSpec> declared(Stream& stream, const spec::ModelSpec& m,
                                const model::ModelImpls& impls,
                                const model::StageSpec& stage = {}) {
  model::ParamStore params;
  const model::Gpt gpt(stream, params, m, kLength, {}, impls, stage);
  std::vector<ParamSpec> all;
  for (const model::Parameter* p : params.params())
    if (!p->copy) all.push_back(*p);
  return all;
}

using Texts = std::vector<std::string>;

bool same_split(const ParamSpec& p, const spec::TensorSplit& split, int tp, int ep) {
  using Dim = model::ShardSpec::Dim;
  const std::map<spec::TensorSplit::Dim, Dim> dims{{spec::TensorSplit::Dim::none, Dim::none},
                                                   {spec::TensorSplit::Dim::rows, Dim::rows},
                                                   {spec::TensorSplit::Dim::columns, Dim::columns}};
  if (p.experts.ranks != (split.experts ? ep : 1)) return false;
  if (tp == 1) return true;
  if (p.shard.dim != dims.at(split.dim)) return false;
  return std::ranges::equal(
      p.shard.sections, split.sections,
      [&](const model::ShardSpec::Section& here, const spec::RowSection& whole) {
        const bool units = split.padded ? here.units >= whole.units : here.units == whole.units;
        return units && here.width == whole.width;
      });
}

// Returns the differences between what ranks declare and the list. `tp` ranks divide the matrices,
// and `ep` ranks the experts.
Texts differences(const std::vector<ParamSpec>& declared,
                  const std::vector<spec::TensorSpec>& listed, int tp = 1, int ep = 1) {
  Texts found;
  for (const ParamSpec& p : declared)
    if (!find_tensor(listed, p.name)) found.push_back(p.name + " is declared, but not listed");
  for (size_t i = 0; i < listed.size(); ++i) {
    const spec::TensorSpec& t = listed[i];
    const auto at = std::ranges::find(declared, t.name, &ParamSpec::name);
    if (at == declared.end()) {
      found.push_back(t.name + " is listed, but not declared");
      continue;
    }
    const auto check = [&](bool same, const char* what) {
      if (!same) found.push_back(t.name + " has a different " + what);
    };
    check(at - declared.begin() == int64_t(i), "place");
    check(at->full_shape() == t.full_shape, "shape");
    check(at->init == t.init && (t.init != spec::Init::normal || at->std == t.std),
          "initialization");
    check(at->role == t.role, "role");
    check(same_split(*at, t.split, tp, ep), "split");
  }
  return found;
}

}  // namespace

TEST_CASE("each family declares the tensors that are listed for it, under every layout") {
  for (const std::string& name : golden_hf_cases()) {
    CAPTURE(name);
    const spec::ModelSpec m = imported(name);
    const auto listed = spec::parameters(m);
    const auto device = Device::cpu(1);
    Stream& stream = device->stream(device::StreamKind::compute);
    CHECK(differences(declared(stream, m, {}), listed) == Texts());

    // Two stages of a pipeline, of which the last has a copy of a tied table.
    const int64_t middle = m.layer_count() / 2;
    auto first = declared(stream, m, {}, {.end = middle, .head = false, .shares_table = true});
    for (const ParamSpec& p :
         declared(stream, m, {}, {.begin = middle, .embedding = false, .shares_table = true}))
      first.push_back(p);
    CHECK(differences(first, listed) == Texts());

    // Three stages, of which the last has the output layer alone.
    if (!m.tied_embeddings && m.mtp.depths > 0) {
      auto all = declared(stream, m, {}, {.end = middle, .head = false, .shares_table = true});
      const int64_t end = m.layer_count();
      for (const model::StageSpec& stage :
           {model::StageSpec{.begin = middle,
           .embedding = false,
           .head = false,
           .sends_depths = true,
           .shares_table = true},
            {.begin = end, .embedding = false, .receives_depths = true}})
        for (const ParamSpec& p : declared(stream, m, {}, stage)) all.push_back(p);
      CHECK(differences(all, listed) == Texts());
    }

    if (const spec::Experts* experts = m.experts(); experts && experts->count % 2 == 0)
      for (int rank = 0; rank < 2; ++rank)
        CHECK(differences(declared(stream, m, {.experts = {.ranks = 2, .rank = rank}}), listed, 1,
                          2) == Texts());

    const std::vector<checkpoint::ReplicatedTensor> states =
        train::RouterState(stream, m).tensors();
    for (const spec::TensorSpec& t : spec::tensors(m)) {
      if (t.role != TensorRole::state) continue;
      INFO(t.name);
      const auto state = std::ranges::find(states, t.name, &checkpoint::ReplicatedTensor::name);
      REQUIRE(state != states.end());
      CHECK(state->value.shape() == t.full_shape);
    }
  }
}

TEST_CASE("ranks of tensor parallelism declare parts of the listed tensors, or copies of heads") {
  int copied_heads = 0;
  for (const std::string& name : golden_hf_cases())
    for (const int tp : {2, 4}) {
      CAPTURE(name, tp);
      const spec::ModelSpec m = imported(name);
      const auto& a = m.layer(0).grouped();
      if (a.heads % tp != 0 || (a.kv_heads % tp != 0 && tp % a.kv_heads != 0)) continue;
      copied_heads += a.kv_heads < tp;
      std::vector<std::vector<ParamSpec>> of_ranks(static_cast<size_t>(tp));
      run_ranks(tp, "thread", [&](TestRank& rank) {
        of_ranks[size_t(rank.rank())] =
            declared(rank.stream, m, parallel::share_layers(rank.world, rank.device, m));
      });
      for (const auto& rank : of_ranks)
        CHECK(differences(rank, spec::parameters(m), tp) == Texts());
    }
  CHECK(copied_heads > 0);
}

TEST_CASE("tensors have GPT-2's initial values and the roles that optimizers know") {
  struct Row {
    const char* name;
    TensorRole role;
    spec::Init init;
    double std = 0;
  };
  using enum TensorRole;
  using enum spec::Init;
  const auto expect = [](spec::ModelSpec m, const std::vector<Row>& rows) {
    m.init_std = 0.03;
    const auto listed = spec::tensors(m);
    for (const Row& row : rows) {
      INFO(row.name);
      const spec::TensorSpec* t = spec::find_tensor(listed, row.name);
      REQUIRE(t);
      CHECK(t->role == row.role);
      CHECK(t->init == row.init);
      if (row.init == normal) CHECK(t->std == Approx(row.std));
    }
  };
  // Two layers write into the residual stream four times: 0.03 / sqrt(4).
  expect(imported("qwen3_moe"), {{"embedding.weight", table, normal, 0.03},
                                 {"layers.0.attention.norm.weight", vector, ones},
                                 {"layers.0.attention.qkv.weight", matrix, normal, 0.03},
                                 {"layers.0.attention.proj.weight", matrix, normal, 0.015},
                                 {"layers.0.attention.q_norm.weight", vector, ones},
                                 {"layers.1.mlp.router.weight", matrix, normal, 0.03},
                                 {"layers.1.mlp.experts.gate_up.weight", matrix, normal, 0.03},
                                 {"layers.1.mlp.experts.down.weight", matrix, normal, 0.015},
                                 {"final_norm.weight", vector, ones},
                                 {"output.weight", table, normal, 0.03}});
  expect(imported("gpt2"), {{"position_embedding.weight", table, normal, 0.03},
                            {"layers.0.attention.norm.bias", vector, zeros},
                            {"layers.0.attention.qkv.bias", vector, zeros},
                            {"layers.1.mlp.up.weight", matrix, normal, 0.03},
                            {"layers.1.mlp.down.weight", matrix, normal, 0.015},
                            {"layers.1.mlp.down.bias", vector, zeros}});
  expect(imported("gemma2"), {{"layers.0.attention.norm.weight", vector, zeros},
                              {"layers.0.mlp.out_norm.weight", vector, zeros}});
}

TEST_CASE("a tensor that is declared in a different way from the list is reported by its name") {
  const spec::ModelSpec m = imported("qwen3_moe");
  std::vector<ParamSpec> of_rank;
  run_ranks(2, "thread", [&](TestRank& rank) {
    auto own = declared(rank.stream, m, parallel::share_layers(rank.world, rank.device, m));
    if (rank.rank() == 0) of_rank = std::move(own);
  });
  const std::vector<spec::TensorSpec> listed = spec::parameters(m);
  CHECK(differences(of_rank, listed, 2) == Texts());
  const std::string proj = "layers.0.attention.proj.weight";
  const auto planted = [&](const auto& mistake) {
    std::vector<spec::TensorSpec> list = listed;
    mistake(list, *std::ranges::find(list, proj, &spec::TensorSpec::name));
    return differences(of_rank, list, 2);
  };
  CHECK(planted([](auto&, spec::TensorSpec& t) { t.name = "layers.0.attention.out.weight"; }) ==
        Texts{proj + " is declared, but not listed",
              "layers.0.attention.out.weight is listed, but not declared"});
  CHECK(planted([](auto&, spec::TensorSpec& t) { t.split = {}; }) ==
        Texts{proj + " has a different split"});
  CHECK(planted([](auto&, spec::TensorSpec& t) { t.full_shape[1] *= 2; }) ==
        Texts{proj + " has a different shape"});
  CHECK(planted([](auto&, spec::TensorSpec& t) { t.std *= 2; }) ==
        Texts{proj + " has a different initialization"});
  CHECK(planted([](auto&, spec::TensorSpec& t) { t.role = TensorRole::table; }) ==
        Texts{proj + " has a different role"});
  CHECK(
      planted([](auto& list, spec::TensorSpec&) { std::swap(list[0], list[1]); }) ==
      Texts{listed[1].name + " has a different place", listed[0].name + " has a different place"});
  CHECK(planted([&](auto& list, spec::TensorSpec&) {
          std::erase_if(list, [&](const auto& t) { return t.name == listed.back().name; });
        }) == Texts{listed.back().name + " is declared, but not listed"});
}

}  // namespace interchange_declared_tensors_test
