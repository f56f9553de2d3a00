// Compares whole models with an independent reference: logits, loss and every gradient of a small
// model of each family, which scripts/golden/model.py has computed in float64.
#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "device/device.h"
#include "interchange/model_source.h"
#include "model/experts/experts_of_step.h"
#include "model/gpt.h"
#include "ops/elementwise.h"
#include "plan/load_recipe.h"
#include "plan/run_plan.h"
#include "recipe/model_spec.h"
#include "recipe/recipe.h"
#include "storage/safetensors.h"

namespace parity_golden_test {

using namespace mtrain;

namespace {

constexpr int64_t kPaddedVocab = 128;  // of 97 ids

// The metadata have a recipe's keys. Where they give 0 or null to what a model lacks, a recipe
// leaves the key out.
spec::ModelSpec spec_of(nlohmann::json config) {
  std::erase_if(config.get_ref<nlohmann::json::object_t&>(),
                [](const auto& entry) { return entry.second.is_null(); });
  if (config.contains("moe"))
    for (const char* key : {"expert_capacity_factor", "shared_expert_ffn_hidden_size"})
      if (config["moe"].at(key) == 0) config["moe"].erase(key);
  recipe::Diagnostics diagnostics;
  const auto r =
      recipe::read_recipe_text(interchange::model_source(),
                               nlohmann::json{{"model", config}}.dump(), "golden", {}, diagnostics);
  INFO(diagnostics.text(recipe::Severity::error));
  REQUIRE_FALSE(diagnostics.has_errors());
  return recipe::model_spec(r->model, r->model.vocab_size, 0);
}

std::vector<float> floats(const storage::SafetensorsReader& file, const std::string& name) {
  std::vector<float> out(size_t(file.info(name).count()));
  file.read(name, 0, int64_t(out.size()), out.data());
  return out;
}

// Converts the (B, S) order of the file to the (S * B) token order of the model.
std::vector<int32_t> sequence_major(const storage::SafetensorsReader& file, const std::string& name,
                                    int64_t& B, int64_t& S) {
  const auto& info = file.info(name);
  REQUIRE(info.dtype == DType::i32);
  B = info.shape[0], S = info.shape[1];
  std::vector<int32_t> in(size_t(B * S)), out(in.size());
  file.read_bytes(name, 0, info.bytes, in.data());
  for (int64_t b = 0; b < B; ++b)
    for (int64_t s = 0; s < S; ++s) out[size_t(s * B + b)] = in[size_t(b * S + s)];
  return out;
}

// Returns the relative L2 distance of two tensors, which the numerics contract bounds. NaN gives
// NaN, which passes no bound.
double relative_l2(const std::vector<float>& got, const std::vector<float>& expected) {
  REQUIRE(got.size() == expected.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(double(got[i]) - expected[i], 2);
    norm += std::pow(double(expected[i]), 2);
  }
  return std::sqrt(difference / (norm + 1e-30));
}

struct Family {
  explicit Family(const std::string& name, DType dtype, model::Recompute recompute = {})
      : file(std::string(MTRAIN_SOURCE_DIR) + "/test/golden/model/" + name + ".safetensors"),
        spec(spec_of(nlohmann::json::parse(file.metadata().at("config")))) {
    const auto ids = sequence_major(file, "input_ids", B, S);
    const auto labels = sequence_major(file, "labels", B, S);
    std::vector<int32_t> positions;
    for (int64_t t = 0; t < B * S; ++t) positions.push_back(int32_t(t / B));
    for (int32_t l : labels) counted += l >= 0;
    model::ModelImpls impls{.padded_vocab = kPaddedVocab};
    impls.router_bias_LE = router_state("bias");
    experts.fraction_LE = router_state("load_fraction");
    model = std::make_unique<model::Gpt>(stream, params, spec, S, recompute, impls);
    params.materialize(stream, dtype, true);
    for (model::Parameter* p : params.params())
      params.set_master(stream, *p, floats(file, p->name));
    batch.input_T = Tensor::from_host(stream, {B * S}, ids);
    batch.label_T = Tensor::from_host(stream, {B * S}, labels);
    batch.seq = {.B = B, .S = S, .position_T = Tensor::from_host(stream, {B * S}, positions)};
  }

  double forward_backward() {
    const Tensor total = Tensor::from_host<double>(stream, {1}, {0.0});
    model::WgradQueue wgrad;
    model::Stash stash;
    model::Step step{.compute = stream, .wgrad = wgrad, .stash = &stash, .seq = batch.seq};
    experts.loss_2 = Tensor::from_host<double>(stream, {2}, {0.0, 0.0});
    const int64_t columns = model::ExpertsOfStep::columns(expert_count());
    experts.sums_LS = Tensor::empty(stream, {spec.layer_count(), columns}, DType::f32);
    ops::fill(stream, experts.sums_LS, 0);
    step.experts = &experts;
    params.zero_grads(stream);
    model->forward(step, batch, {batch.label_T, total, 1.0f / float(counted)});
    model->backward(step, batch);
    return total.to_host<double>(stream)[0] / double(counted);
  }

  int64_t expert_count() const { return spec.experts() ? spec.experts()->count : 0; }

  // The reference's capacity drops choices, as training does.
  std::vector<float> logits() {
    model::WgradQueue wgrad;
    model::Stash stash;
    const bool drops = spec.experts() && spec.experts()->drops(true);
    model::Step step{
        .compute = stream, .wgrad = wgrad, .stash = &stash, .seq = batch.seq, .training = drops};
    return model->logits(step, batch).to_host<float>(stream);
  }

  // Returns the state of all routers beside their parameters, (layers, experts); absent if none has
  // it.
  Tensor router_state(const std::string& what) {
    const int64_t E = expert_count();
    std::vector<float> all(size_t(spec.layer_count() * E));
    bool any = false;
    for (int64_t layer = 0; layer < spec.layer_count(); ++layer) {
      const std::string name = "layers." + std::to_string(layer) + ".mlp.router." + what;
      if (!file.contains(name)) continue;
      any = true;
      std::ranges::copy(floats(file, name), all.begin() + layer * E);
    }
    return any ? Tensor::from_host(stream, {spec.layer_count(), E}, all) : Tensor();
  }

  storage::SafetensorsReader file;
  spec::ModelSpec spec;
  int64_t B = 0, S = 0, counted = 0;
  std::unique_ptr<Device> device = Device::cpu(2, {.stream_sanitizer = true});
  Stream& stream = device->stream(device::StreamKind::compute);
  model::ParamStore params;
  std::unique_ptr<model::Gpt> model;
  model::MicroBatch batch;
  model::ExpertsOfStep experts;
};

const std::vector<std::string> kFamilies{"llama",
                                         "llama3_rope",
                                         "llama_bias",
                                         "qwen2",
                                         "qwen3",
                                         "mistral",
                                         "gpt2",
                                         "gpt2_erf",
                                         "yarn",
                                         "mlp_bias",
                                         "post_norms",
                                         "sandwich_norms",
                                         "sandwich_layernorms",
                                         "some_layers",
                                         "geglu_capped"};

const std::vector<std::string> kExpertFamilies{
    "mixtral",      "qwen3_moe",        "qwen2_moe",  "deepseek_moe",   "deepseek_v3_router",
    "seq_aux_loss", "global_aux_loss",  "all_losses", "capacity_probs", "capacity_position",
    "post_experts", "sandwich_experts", "geglu_moe"};

template <class A, class B>
std::vector<std::pair<A, B>> combined(const std::vector<A>& as, const std::vector<B>& bs) {
  std::vector<std::pair<A, B>> out;
  for (const A& a : as)
    for (const B& b : bs) out.emplace_back(a, b);
  return out;
}

void compare_gradients(Family& f, double bound) {
  for (model::Parameter* p : f.params.params()) {
    Shape real = p->shape;
    real[0] = p->real_count() / (p->shape.count() / p->shape[0]);
    const auto got = p->grad.flat(0, real).to_host<float>(f.stream);
    const double distance = relative_l2(got, floats(f.file, "grad." + p->name));
    INFO(p->name << " relative L2 " << distance);
    CHECK(distance < bound);
  }
}

}  // namespace

TEST_CASE("logits, loss and every gradient of each family match the float64 reference") {
  std::vector<std::string> families = kFamilies;
  families.insert(families.end(), kExpertFamilies.begin(), kExpertFamilies.end());
  for (const auto& name : families) {
    DYNAMIC_SECTION(name) {
      Family f(name, DType::f32);
      const auto got = f.logits();
      const auto expected = floats(f.file, "logits");
      std::vector<float> ordered;
      for (int64_t b = 0; b < f.B; ++b)
        for (int64_t s = 0; s < f.S; ++s) {
          const auto row = got.begin() + (s * f.B + b) * kPaddedVocab;
          ordered.insert(ordered.end(), row, row + f.spec.vocab);
        }
      // fp32 against float64 through two layers; the numerics contract allows 1e-5.
      CHECK(relative_l2(ordered, expected) < 1e-5);
      CHECK(f.forward_backward() == Approx(std::stod(f.file.metadata().at("loss"))).epsilon(1e-6));
      compare_gradients(f, 1e-5);
      if (!f.spec.experts()) continue;
      const auto losses = f.experts.loss_2.to_host<double>(f.stream);
      const double want = std::stod(f.file.metadata().at("router_losses"));
      CHECK(losses[0] + losses[1] == Approx(want).epsilon(1e-6));
    }
  }
}

TEST_CASE("families of experts have the defaults of their golden models") {
  for (const std::string family : {"mixtral", "qwen2_moe", "qwen3_moe", "deepseek_moe"}) {
    INFO(family);
    const storage::SafetensorsReader file(std::string(MTRAIN_SOURCE_DIR) + "/test/golden/model/" +
                                          family + ".safetensors");
    const auto golden = nlohmann::json::parse(file.metadata().at("config"));
    const auto& experts = golden.at("moe");
    REQUIRE(golden.at("architecture") == family);
    recipe::Diagnostics diagnostics;
    const recipe::Recipe r = plan::load_recipe_text(
        interchange::model_source(), "dataset: {train: x}\n", "family",
        {"model.moe=8", "model.moe.router_topk=2", "model.architecture=" + family}, diagnostics, 1);
    INFO(diagnostics.text(recipe::Severity::error));
    REQUIRE_FALSE(diagnostics.has_errors());
    CHECK(r.model.norm_epsilon == golden.at("norm_epsilon"));
    CHECK(r.model.rotary_base == golden.at("rotary_base"));
    CHECK(r.model.add_qkv_bias == golden.at("add_qkv_bias"));
    CHECK(r.model.qk_layernorm == golden.at("qk_layernorm"));
    CHECK(r.model.moe.first_dense_layers == experts.at("first_dense_layers"));
    CHECK(r.model.moe.shared_expert_gate == experts.at("shared_expert_gate"));
    // A softmax over all experts whose chosen weights sum to 1 is one over the chosen experts.
    const RouterForm form = plan::make_plan(r, 1, 512).model.experts()->form;
    CHECK((form.normalize || form.over_chosen) ==
          (experts.at("norm_topk_prob").get<bool>() || !experts.at("router_pre_softmax")));
  }
}

TEST_CASE("bf16 gradients stay near the float64 reference") {
  for (const auto& name : kFamilies) {
    DYNAMIC_SECTION(name) {
      Family f(name, DType::bf16);
      CHECK(f.forward_backward() == Approx(std::stod(f.file.metadata().at("loss"))).epsilon(2e-2));
      // Each activation is rounded to 8 bits (relative 2^-9); two layers have some twenty
      // roundings.
      compare_gradients(f, 5e-2);
    }
  }
}

TEST_CASE("recomputation gives the same bits") {
  std::vector<std::string> families = kFamilies;
  families.insert(families.end(), kExpertFamilies.begin(), kExpertFamilies.end());
  for (const auto& [name, dtype] :
       combined(families, std::vector<DType>{DType::f32, DType::bf16})) {
    DYNAMIC_SECTION(name << " in " << dtype_name(dtype)) {
      Family kept(name, dtype);
      const double loss = kept.forward_backward();
      std::vector<model::Recompute> policies{{.cheap = false},
                                             {.norms = true, .cheap = false},
                                             {.group = 1, .layers = 2},
                                             {.group = 2, .layers = 2},
                                             {.group = 1, .layers = 1}};
      for (const int modules : {1, 2, 3, 4, 5, 6, 7})
        policies.push_back({.attention_core = (modules & 1) != 0,
                            .norms = (modules & 2) != 0,
                            .mlp = (modules & 4) != 0});
      if (kept.spec.experts())
        for (const int modules : {1, 2, 4, 5, 6, 13, 16 + 5})
          policies.push_back({.norms = (modules & 8) != 0,
                              .experts = (modules & 1) != 0,
                              .experts_act = (modules & 2) != 0,
                              .shared_expert = (modules & 4) != 0,
                              .cheap = (modules & 16) == 0});
      for (const model::Recompute& policy : policies) {
        CAPTURE(policy.attention_core, policy.norms, policy.mlp, policy.group, policy.layers,
                policy.experts, policy.experts_act, policy.shared_expert, policy.cheap);
        Family again(name, dtype, policy);
        CHECK(again.forward_backward() == loss);
        CHECK(again.experts.loss_2.to_host<double>(again.stream) ==
              kept.experts.loss_2.to_host<double>(kept.stream));
        CHECK(again.experts.sums_LS.to_host<float>(again.stream) ==
              kept.experts.sums_LS.to_host<float>(kept.stream));
        for (model::Parameter* p : kept.params.params())
          CHECK(p->grad.to_host<float>(kept.stream) ==
                again.params.find(p->name)->grad.to_host<float>(again.stream));
      }
    }
  }
}

TEST_CASE("holding weight gradients and draining them later gives the same bits") {
  Family at_once("llama", DType::f32), held("llama", DType::f32);
  at_once.forward_backward();
  const Tensor total = Tensor::from_host<double>(held.stream, {1}, {0.0});
  std::vector<std::string> finished;
  model::WgradQueue wgrad([&](model::Parameter& p) { finished.push_back(p.name); });
  model::Stash stash;
  model::Step step{.compute = held.stream, .wgrad = wgrad, .stash = &stash, .seq = held.batch.seq};
  held.params.zero_grads(held.stream);
  wgrad.hold(true);
  held.model->forward(step, held.batch, {held.batch.label_T, total, 1.0f / float(held.counted)});
  held.model->backward(step, held.batch);
  CHECK(wgrad.held() == 4 * 2 + 2);  // four linears a layer, output, embedding
  CHECK(wgrad.drain(3) == 3);
  CHECK(wgrad.drain() == 7);
  for (model::Parameter* p : at_once.params.params()) {
    CHECK(p->grad.to_host<float>(at_once.stream) ==
          held.params.find(p->name)->grad.to_host<float>(held.stream));
    CHECK(std::count(finished.begin(), finished.end(), p->name) == 1);
  }
}

}  // namespace parity_golden_test
