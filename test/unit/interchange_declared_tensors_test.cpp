// The list of a model's tensors is what the model declares, for each family and under each layout.
#include <map>
#include <mutex>

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

void check_split(const ParamSpec& p, const spec::TensorSplit& split, int tp, int ep) {
  using Dim = model::ShardSpec::Dim;
  const std::map<spec::TensorSplit::Dim, Dim> dims{{spec::TensorSplit::Dim::none, Dim::none},
                                                   {spec::TensorSplit::Dim::rows, Dim::rows},
                                                   {spec::TensorSplit::Dim::columns, Dim::columns}};
  CHECK(p.experts.ranks == (split.experts ? ep : 1));
  if (tp == 1) return;
  REQUIRE(p.shard.dim == dims.at(split.dim));
  REQUIRE(p.shard.sections.size() == split.sections.size());
  for (size_t i = 0; i < split.sections.size(); ++i) {
    CHECK(p.shard.sections[i].width == split.sections[i].width);
    if (split.padded)
      CHECK(p.shard.sections[i].units >= split.sections[i].units);
    else
      CHECK(p.shard.sections[i].units == split.sections[i].units);
  }
}

void check_same(const std::vector<ParamSpec>& declared, const std::vector<spec::TensorSpec>& listed,
                int tp = 1, int ep = 1) {
  REQUIRE(declared.size() == listed.size());
  for (size_t i = 0; i < listed.size(); ++i) {
    const ParamSpec& p = declared[i];
    const spec::TensorSpec& t = listed[i];
    INFO(t.name);
    REQUIRE(p.name == t.name);
    CHECK(p.whole_shape().str() == t.whole.str());
    CHECK(p.init == t.init);
    if (t.init == spec::Init::normal) CHECK(p.std == t.std);
    CHECK(p.role == t.role);
    check_split(p, t.split, tp, ep);
  }
}

}  // namespace

TEST_CASE("each family declares the tensors that are listed for it, under every layout") {
  for (const std::string& name : golden_hf_cases()) {
    CAPTURE(name);
    const spec::ModelSpec m = imported(name);
    const auto listed = spec::parameters(m);
    const auto device = Device::cpu(1);
    Stream& stream = device->stream(device::StreamKind::compute);
    check_same(declared(stream, m, {}), listed);

    // Two stages of a pipeline, of which the last has a copy of a tied table.
    const int64_t middle = m.layer_count() / 2;
    auto first = declared(stream, m, {}, {.end = middle, .head = false, .shares_table = true});
    for (const ParamSpec& p :
         declared(stream, m, {}, {.begin = middle, .embedding = false, .shares_table = true}))
      first.push_back(p);
    check_same(first, listed);

    if (const spec::Experts* experts = m.experts(); experts && experts->count % 2 == 0)
      for (int rank = 0; rank < 2; ++rank)
        check_same(declared(stream, m, {.experts = {.ranks = 2, .rank = rank}}), listed, 1, 2);

    const std::vector<checkpoint::ReplicatedTensor> states =
        train::RouterState(stream, m).tensors();
    for (const spec::TensorSpec& t : spec::tensors(m)) {
      if (t.role != TensorRole::state) continue;
      INFO(t.name);
      const auto state = std::ranges::find(states, t.name, &checkpoint::ReplicatedTensor::name);
      REQUIRE(state != states.end());
      CHECK(state->value.shape() == t.whole);
    }
  }
}

TEST_CASE("ranks of tensor parallelism declare parts of the listed tensors, or copies of heads") {
  int copied_heads = 0;
  for (const std::string& name : golden_hf_cases())
    for (const int tp : {2, 4}) {
      CAPTURE(name, tp);
      const spec::ModelSpec m = imported(name);
      const auto& a = std::get<spec::GroupedAttention>(m.layer(0).attention);
      if (a.heads % tp != 0 || (a.kv_heads % tp != 0 && tp % a.kv_heads != 0)) continue;
      copied_heads += a.kv_heads < tp;
      std::vector<std::vector<ParamSpec>> of_ranks(static_cast<size_t>(tp));
      run_ranks(tp, "thread", [&](TestRank& rank) {
        of_ranks[size_t(rank.rank())] =
            declared(rank.stream, m, parallel::share_layers(rank.world, rank.device, m));
      });
      for (const auto& rank : of_ranks) check_same(rank, spec::parameters(m), tp);
    }
  CHECK(copied_heads > 0);
}

}  // namespace interchange_declared_tensors_test
