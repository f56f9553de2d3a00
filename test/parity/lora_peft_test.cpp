// Adapters against peft: what scripts/golden/lora.py has made for the models of test/golden/hf.
// Also checkpoints with adapters alone, and what becomes of them.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "base/file.h"
#include "base/log.h"
#include "interchange/adapter_folder.h"
#include "interchange/export.h"
#include "interchange/trained_weights.h"
#include "lora_peft_testing.h"
#include "model/param/param_uploader.h"
#include "run/data_identity.h"
#include "run/evaluate_model.h"
#include "run/run_checkpoint.h"
#include "run/stored_model.h"
#include "storage/checkpoint_dir.h"
#include "storage/checkpoint_tensors.h"
#include "storage/state.h"
#include "test/support/comm_testing.h"

namespace parity_lora_peft_test {

using namespace mtrain;
using namespace lora_peft_testing;
using Catch::Matchers::Contains;

namespace {

// Returns the base model's weights with the adapters of that folder merged into them.
std::vector<std::vector<float>> merged_values(const interchange::HfFolder& base,
                                              const fs::path& folder) {
  const auto adapter = interchange::open_adapter_folder(folder, base.map);
  const interchange::MergedWeights weights(base.source(), adapter.factors, adapter.adapters);
  std::vector<std::vector<float>> all;
  for (const interchange::MappedTensor& w : base.map.tensors())
    all.push_back(values_of(weights, w.name));
  return all;
}

// Returns the adapter of peft for each adapter of the model.
std::map<std::string, const interchange::Adapter*> by_parameter(
    const spec::ModelSpec& model, const interchange::AdapterFolder& folder) {
  std::map<std::string, const interchange::Adapter*> all;
  for (const interchange::Adapter& own : interchange::adapters_of(model))
    for (const interchange::Adapter& a : folder.adapters)
      if (a.weight == own.weight && a.first_row == own.first_row && a.rows == own.rows) {
        CHECK(a.scale == Approx(own.scale));
        all[own.a] = all[own.b] = &a;
      }
  return all;
}

// Returns what peft records under that name. Its columns of B go through the experts of each rank.
std::vector<float> recorded(const storage::ValueSource& source, const std::string& name,
                            const interchange::Adapter& a, bool of_b) {
  const std::vector<float> values = values_of(source, name);
  if (a.experts == 0 || !of_b) return values;
  std::vector<float> by_expert;
  for (int64_t e = 0; e < a.experts; ++e)
    for (int64_t o = 0; o < a.rows; ++o)
      for (int64_t k = 0; k < a.dim; ++k)
        by_expert.push_back(values[size_t((o * a.dim + k) * a.experts + e)]);
  return by_expert;
}

std::string factor_of(const std::string& parameter, const interchange::Adapter& a) {
  return parameter.ends_with(".a") ? a.a : a.b;
}

// Trains two steps, saves, and returns the checkpoint.
fs::path saved_run(const fs::path& folder, const fs::path& base, const Changes& changes = {}) {
  const auto device = Device::cpu(1);
  train::Trainer t = tuned(*device, base, with(kOfLlama, changes));
  run::start_from_folder(t);
  t.step(), t.step();
  const run::DataIdentity data(t.plan());
  run::save_run(t, folder, {.data = &data});
  return storage::find_latest(folder)->path;
}

// Copies a golden model, and changes some of its values.
fs::path changed_base(const fs::path& to) {
  fs::copy(golden_hf() / "llama", to, fs::copy_options::recursive);
  std::fstream file(to / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-2, std::ios::end);
  file.write("\x11\x3c", 2);
  return to;
}

}  // namespace

TEST_CASE("the loss and the gradients of A and B are those of peft") {
  for (const TunedModel& c : kTrained) {
    INFO(c.name);
    const storage::SafetensorsReader expected(golden_lora(c.name) / "expected.safetensors");
    const auto device = Device::cpu(1);
    const Recipe r = recipe_of(golden_hf() / c.name, c.peft);
    train::Trainer t = make_trainer(*device, r, std::make_shared<GoldenIds>(expected),
                                    comm::World::alone(), r.model.vocab_size);
    run::start_from_folder(t);
    const auto base = interchange::open_hf_folder(golden_hf() / c.name);
    const auto folder = interchange::open_adapter_folder(golden_lora(c.name), base.map);
    const auto factors = by_parameter(t.plan().model, folder);
    const auto of_experts = [](const interchange::Adapter& a) { return a.expert > 0; };
    CHECK(factors.size() == 2 * (folder.adapters.size() -
                                 size_t(std::ranges::count_if(folder.adapters, of_experts))));
    for (const model::Parameter* p : t.params().params())
      if (p->adapter)
        model::ParamStore::set_master(
            t.compute(), *p, values_of(*folder.factors, factor_of(p->name, *factors.at(p->name))));
    const double loss = t.step().loss;
    CHECK(loss == Approx(values_of(expected, "loss")[0]).epsilon(1e-6));
    for (const model::Parameter* p : t.params().params()) {
      if (!p->adapter) continue;
      INFO(p->name);
      const interchange::Adapter& a = *factors.at(p->name);
      const auto want = recorded(expected, factor_of(p->name, a), a, p->name.ends_with(".b"));
      CHECK(relative_l2(p->grad.to_host_float(t.compute()), want) < 1e-5);
    }
  }
}

TEST_CASE(
    "an adapter goes through a checkpoint and an export unchanged, and back into peft's form") {
  for (const TunedModel& c : kTrained) {
    INFO(c.name);
    const TemporaryFolder temporary;
    const auto device = Device::cpu(1);
    train::Trainer t = tuned(*device, golden_hf() / c.name, c.peft);
    run::start_from_folder(t);
    const auto base = interchange::open_hf_folder(golden_hf() / c.name);
    const auto golden = interchange::open_adapter_folder(golden_lora(c.name), base.map);
    const auto factors = by_parameter(t.plan().model, golden);
    for (const model::Parameter* p : t.params().params())
      if (p->adapter)
        model::ParamStore::set_master(
            t.compute(), *p, values_of(*golden.factors, factor_of(p->name, *factors.at(p->name))));
    const auto checkpoint = run::save_run(t, temporary / "checkpoints");
    interchange::export_hf(checkpoint, temporary / "adapter", {});
    const auto exported = interchange::open_adapter_folder(temporary / "adapter", base.map);
    CHECK(exported.adapters.size() == golden.adapters.size());
    for (const interchange::Adapter& a : golden.adapters)
      for (const std::string& name : {a.a, a.b})
        CHECK((values_of(*exported.factors, name) == values_of(*golden.factors, name)));
    interchange::export_hf(checkpoint, temporary / "merged", {.dtype = DType::f32, .merge = true});
    const auto merged = interchange::open_hf_folder(temporary / "merged");
    const interchange::MergedWeights want(base.source(), golden.factors, golden.adapters);
    for (const interchange::MappedTensor& w : base.map.tensors())
      CHECK((values_of(*merged.source(), w.name) == values_of(want, w.name)));
  }
}

TEST_CASE("a checkpoint of adapters has nothing else, and continues under any layout") {
  const TemporaryFolder temporary;
  const fs::path base = golden_hf() / "llama";
  const auto device = Device::cpu(1);
  train::Trainer straight = tuned(*device, base, kOfLlama);
  run::start_from_folder(straight);
  std::vector<double> want;
  for (int i = 0; i < 4; ++i) want.push_back(straight.step().loss);
  const fs::path from = saved_run(temporary / "checkpoints", base);
  for (const auto set : {storage::TensorSet::weights, storage::TensorSet::optimizer}) {
    const auto file = storage::open_checkpoint_tensors(from, set);
    for (const auto& t : file->entries()) CHECK_THAT(t.name, Contains(".lora."));
  }
  for (const Changes& layout :
       {Changes{}, kFsdp2, kMegatron, kAtOnce, Changes{"distributed.strategy=ddp"},
        Changes{"distributed.strategy=megatron_fsdp"}, Changes{"distributed.tp_size=2"},
        Changes{"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b"},
        Changes{"distributed.pp_size=2", "distributed.vpp_size=1",
                "distributed.pipeline.pp_schedule=zero_bubble"}}) {
    std::vector<double> got;
    run_ranks(layout.empty() ? 1 : 2, "thread", [&](TestRank& rank) {
      train::Trainer t = tuned(rank.device, base, with(kOfLlama, layout), rank.world);
      run::DataIdentity data(t.plan());
      run::resume_run(t, from, &data);
      for (int i = 0; i < 2; ++i) {
        const double loss = t.step().loss;
        if (rank.rank() == 0) got.push_back(loss);
      }
    });
    check_close({want.begin() + 2, want.end()}, got, layout.empty() ? 0 : 1e-5);
  }
}

TEST_CASE("adapters of experts that ranks have saved continue on one rank, and on others") {
  const fs::path base = golden_hf() / "mixtral";
  const Changes own = with(kTrained[4].peft, {});
  const auto device = Device::cpu(1);
  train::Trainer straight = tuned(*device, base, own);
  run::start_from_folder(straight);
  std::vector<double> want;
  for (int i = 0; i < 4; ++i) want.push_back(straight.step().loss);
  const Changes ep{"distributed.ep_size=2"}, tp{"distributed.tp_size=2"};
  for (const Changes& saved : {ep, tp, with(ep, kFsdp2)}) {
    const TemporaryFolder temporary;
    run_ranks(2, "thread", [&](TestRank& rank) {
      train::Trainer t = tuned(rank.device, base, with(own, saved), rank.world);
      run::start_from_folder(t);
      t.step(), t.step();
      const run::DataIdentity data(t.plan());
      run::save_run(t, temporary.path, {.data = &data});
    });
    const fs::path from = storage::find_latest(temporary.path)->path;
    for (const Changes& layout : {Changes{}, ep, tp}) {
      std::vector<double> got;
      run_ranks(layout.empty() ? 1 : 2, "thread", [&](TestRank& rank) {
        train::Trainer t = tuned(rank.device, base, with(own, layout), rank.world);
        run::DataIdentity data(t.plan());
        run::resume_run(t, from, &data);
        for (int i = 0; i < 2; ++i) {
          const double loss = t.step().loss;
          if (rank.rank() == 0) got.push_back(loss);
        }
      });
      check_close({want.begin() + 2, want.end()}, got, 1e-5);
    }
  }
}

TEST_CASE("a checkpoint of adapters that does not record its base model gets a warning") {
  const TemporaryFolder temporary;
  const fs::path base = golden_hf() / "llama";
  const auto device = Device::cpu(1);
  train::Trainer t = tuned(*device, base, kOfLlama);
  run::start_from_folder(t);
  t.step();
  const fs::path from = run::save_run(t, temporary.path);  // without the identity of its data
  std::string warnings;
  log::set_record(nullptr);  // forgets what other tests have logged
  log::set_record([&](std::string_view lines) { warnings += lines; });
  interchange::open_trained(from);
  log::set_record(nullptr);
  CHECK_THAT(warnings, Contains("does not record which base model"));

  // A run that continues cannot compare its base model either.
  train::Trainer next = tuned(*device, base, kOfLlama);
  run::DataIdentity data(next.plan());
  warnings.clear();
  log::set_record(nullptr);
  log::set_record([&](std::string_view lines) { warnings += lines; });
  run::resume_run(next, from, &data);
  log::set_record(nullptr);
  CHECK_THAT(warnings, Contains("does not record which base model"));
}

TEST_CASE("a checkpoint of adapters with an earlier version's hash of its base can be used") {
  const TemporaryFolder temporary;
  const fs::path base = golden_hf() / "llama";
  const fs::path from = saved_run(temporary / "checkpoints", base);
  std::string state = read_file(from / "state.json");
  const std::string key = std::string("\"") + interchange::kBaseContent + "\"";
  REQUIRE(state.find(key) != std::string::npos);
  const size_t value = state.find('"', state.find(key) + key.size());
  state.replace(value, state.find('"', value + 1) + 1 - value, "\"0123456789abcdef\"");
  state.replace(state.find(key), key.size(), "\"base_model\"");
  write_file_atomic(from / "state.json", state);
  std::string warnings;
  log::set_record(nullptr);  // forgets what other tests have logged
  log::set_record([&](std::string_view lines) { warnings += lines; });
  CHECK(interchange::open_trained(from).adapters.size() == 6);
  log::set_record(nullptr);
  CHECK_THAT(warnings, Contains("does not record which base model"));
  const auto device = Device::cpu(1);
  train::Trainer t = tuned(*device, base, kOfLlama);
  run::DataIdentity data(t.plan());
  CHECK(data.differences(storage::TrainState::load(from / "state.json")).empty());
}

TEST_CASE("adapters of experts in AutoModel's form, with A and B swapped, are the same") {
  const auto base = interchange::open_hf_folder(golden_hf() / "mixtral");
  const fs::path golden = golden_lora("mixtral");
  const storage::SafetensorsReader file(golden / "adapter_model.safetensors");
  const TemporaryFolder temporary;
  fs::copy_file(golden / "adapter_config.json", temporary / "adapter_config.json");
  const int64_t E = 4;
  std::vector<storage::TensorInfo> tensors;
  std::vector<std::vector<float>> values;
  for (const storage::StoredTensor& t : file.tensors()) {
    std::vector<float> own = values_of(file, t.name);
    Shape shape = file.shape(t.name);
    if (const size_t at = t.name.find("lora_"); t.name.find(".experts.") != std::string::npos) {
      std::string other = t.name;
      other[at + 5] = t.name[at + 5] == 'A' ? 'B' : 'A';
      const std::vector<float> from = values_of(file, other);
      const Shape was = file.shape(other);
      const bool to_a = t.name[at + 5] == 'A';
      const int64_t dim = (to_a ? was[1] : was[0]) / E, X = to_a ? was[0] : was[1];
      shape = to_a ? Shape{E * dim, X} : Shape{X, E * dim};
      own.resize(from.size());
      for (int64_t e = 0; e < E; ++e)
        for (int64_t k = 0; k < dim; ++k)
          for (int64_t x = 0; x < X; ++x) {
            const auto stacked = size_t((e * dim + k) * X + x),
                       columns = size_t(x * E * dim + k * E + e);
            own[to_a ? stacked : columns] = from[to_a ? columns : stacked];
          }
    }
    tensors.push_back({t.name, DType::f32, shape});
    values.push_back(std::move(own));
  }
  write_tensors(temporary / "adapter_model.safetensors", tensors, values);
  CHECK((merged_values(base, temporary.path) == merged_values(base, golden)));
}

TEST_CASE("adapters of experts with a module for each linear of an expert are the same") {
  for (const char* family : {"mixtral", "qwen3_moe"}) {
    INFO(family);
    const auto base = interchange::open_hf_folder(golden_hf() / family);
    const fs::path golden = golden_lora(family);
    const auto opened = interchange::open_adapter_folder(golden, base.map);
    const TemporaryFolder temporary;
    fs::copy_file(golden / "adapter_config.json", temporary / "adapter_config.json");
    std::vector<storage::TensorInfo> tensors;
    std::vector<std::vector<float>> values;
    const auto add = [&](const std::string& name, const Shape& shape, std::vector<float> of_name) {
      tensors.push_back({name, DType::f32, shape});
      values.push_back(std::move(of_name));
    };
    int modules = 0;
    for (const interchange::Adapter& a : opened.adapters) {
      if (a.experts == 0) {
        for (const std::string& name : {a.a, a.b})
          add(name, opened.factors->shape(name), values_of(*opened.factors, name));
        continue;
      }
      const interchange::MappedTensor& weight = *base.map.find(a.weight);
      const int64_t columns = weight.shape[2];
      std::vector<float> of_a(size_t(a.dim * columns)), of_b(size_t(a.rows * a.dim));
      opened.factors->read(a.a, a.expert * a.dim * columns, int64_t(of_a.size()), of_a.data());
      opened.factors->read(a.b, a.expert * a.rows * a.dim, int64_t(of_b.size()), of_b.data());
      for (const interchange::TensorPiece& p : weight.pieces) {
        const int64_t first = p.first / columns - a.first_row, rows = p.count() / columns;
        if (first < 0 || first >= a.rows) continue;
        const std::string module = "base_model.model." + p.hf_name.substr(0, p.hf_name.size() - 7);
        add(module + ".lora_A.weight", {a.dim, columns}, of_a);
        add(module + ".lora_B.weight", {rows, a.dim},
            {of_b.begin() + first * a.dim, of_b.begin() + (first + rows) * a.dim});
        ++modules;
      }
    }
    REQUIRE(modules > 0);
    const fs::path file = temporary / "adapter_model.safetensors";
    write_tensors(file, tensors, values);
    CHECK((merged_values(base, temporary.path) == merged_values(base, golden)));

    // An expert that the model does not have.
    for (storage::TensorInfo& t : tensors)
      if (const size_t at = t.name.find(".experts.0."); at != std::string::npos)
        t.name.replace(at, 11, ".experts.99.");
    write_tensors(file, tensors, values);
    CHECK_THROWS_WITH(merged_values(base, temporary.path),
                      Contains("the model has no linear") && Contains(".experts.99."));
  }
}

TEST_CASE("any changed tensor of a base model changes its content") {
  const TemporaryFolder temporary;
  const auto content = [](const fs::path& folder) {
    return interchange::base_content(interchange::open_hf_folder(folder));
  };
  const fs::path base = golden_hf() / "llama", other = temporary / "other";
  fs::copy(base, other, fs::copy_options::recursive);
  CHECK(content(other) == content(base));
  const auto file = storage::SafetensorsReader(base / "model.safetensors");
  for (const storage::StoredTensor& t : file.tensors()) {
    INFO(t.name);
    for (const int64_t at : {t.begin, t.begin + t.bytes / 2, t.begin + t.bytes - 1}) {
      std::fstream changed(other / "model.safetensors",
                           std::ios::in | std::ios::out | std::ios::binary);
      changed.seekg(at);
      const char was = char(changed.get());
      changed.seekp(at), changed.put(char(was ^ 1)), changed.flush();
      CHECK(content(other) != content(base));
      changed.seekp(at), changed.put(was);
    }
  }
  CHECK(content(other) == content(base));
}

TEST_CASE("a checkpoint of adapters refuses another base model, and names one that is gone") {
  const TemporaryFolder temporary;
  fs::copy(golden_hf() / "llama", temporary / "base", fs::copy_options::recursive);
  const fs::path base = temporary / "base";
  const fs::path from = saved_run(temporary / "checkpoints", base);
  const fs::path other = changed_base(temporary / "other");
  CHECK(interchange::open_trained(from).adapters.size() == 6);
  CHECK_THROWS_WITH(interchange::open_trained(from, other), Contains("does not have the weights"));
  const auto device = Device::cpu(1);
  train::Trainer t = tuned(*device, other, kOfLlama);
  run::DataIdentity data(t.plan());
  CHECK_THROWS_WITH(run::resume_run(t, from, &data), Contains("other weights"));
  fs::rename(base, temporary / "moved");
  CHECK_THROWS_WITH(interchange::open_trained(from), Contains("is gone") && Contains("--base"));
  CHECK(interchange::open_trained(from, temporary / "moved").adapters.size() == 6);
  // Half of the adapters: another recipe would continue with fresh ones.
  train::Trainer more = tuned(*device, temporary / "moved",
                              {"peft.dim=4", "peft.alpha=8", "peft.match_all_linear=true"});
  CHECK_THROWS(run::resume_run(more, from));
  CHECK_THROWS_WITH(checkpoint::load_model(more.checkpoint_parts(), from), Contains(".lora."));
}

TEST_CASE("a run with adapters, an adapter beside its base, and a merged export are one model") {
  const TemporaryFolder temporary;
  const fs::path base = golden_hf() / "llama";
  const fs::path from = saved_run(temporary / "checkpoints", base);
  interchange::export_hf(from, temporary / "adapter", {});
  interchange::export_hf(from, temporary / "merged", {.dtype = DType::f32, .merge = true});
  const auto values = [&](const fs::path& model, const std::string& adapter) {
    const run::StoredModel m = run::open_model(model, {}, "", adapter);
    CHECK_FALSE(m.saved.model.lora);
    const storage::ValueSource& source =
        m.merged ? *m.merged : static_cast<const storage::ValueSource&>(*m.hugging_face);
    std::vector<std::vector<float>> all;
    for (const spec::TensorSpec& t : spec::parameters(m.saved.model))
      all.push_back(values_of(source, t.name));
    return all;
  };
  const auto own = values(from, "");
  CHECK((own == values(temporary / "merged", "")));
  CHECK((own == values(base, (temporary / "adapter").string())));
  CHECK((own == values(base, from.string())));
  CHECK_FALSE((own == values(base, "")));
  CHECK_THROWS_WITH(values(from, from.string()), Contains("already has adapters"));
  CHECK_THROWS_WITH(values(base, base.string()), Contains("adapter_config.json"));
  CHECK_THROWS_WITH(values(golden_hf() / "mixtral", (temporary / "adapter").string()),
                    Contains("up_proj"));
}

TEST_CASE("adapters in peft's form that mtrain cannot compute are named, all at once") {
  const TemporaryFolder temporary;
  const auto base = interchange::open_hf_folder(golden_hf() / "llama");
  const auto refused = [&](const std::string& from, const std::string& to) {
    const fs::path folder = temporary / "adapter";
    fs::remove_all(folder);
    fs::copy(golden_lora("llama"), folder, fs::copy_options::recursive);
    std::string text = read_file((folder / "adapter_config.json").string());
    text.replace(text.find(from), from.size(), to);
    write_file_atomic(folder / "adapter_config.json", text);
    interchange::open_adapter_folder(folder, base.map);
  };
  CHECK_NOTHROW(refused("\"r\": 4", "\"r\": 4"));
  CHECK_THROWS_WITH(refused("\"use_dora\": false", "\"use_dora\": true"), Contains("DoRA"));
  CHECK_THROWS_WITH(refused("\"bias\": \"none\"", "\"bias\": \"all\""), Contains("trained biases"));
  CHECK_THROWS_WITH(refused("\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]"),
                    Contains("as a whole"));
  CHECK_NOTHROW(refused("\"peft_type\": \"LORA\"", "\"peft_type\": null"));
  CHECK_THROWS_WITH(refused("\"peft_type\": \"LORA\"", "\"peft_type\": 3"),
                    Contains("its peft_type is 3"));
  CHECK_NOTHROW(refused("\"lora_alpha\": 8", "\"lora_alpha\": null"));
  CHECK_THROWS_WITH(refused("\"lora_alpha\": 8", "\"lora_alpha\": \"8\""),
                    Contains("lora_alpha") && Contains("is not a number"));
  CHECK_THROWS_WITH(refused("\"alpha_pattern\": {}", "\"alpha_pattern\": {\"(?P<n>q)\": 1}"),
                    Contains("alpha_pattern: the pattern (?P<n>q) is not supported"));
  const auto gpt2 = interchange::open_hf_folder(golden_hf() / "gpt2");
  CHECK_THROWS_WITH(interchange::open_adapter_folder(golden_lora("llama"), gpt2.map),
                    Contains("layers.0.self_attn.q_proj") && Contains("layers.1.mlp.up_proj"));
}

TEST_CASE("of two patterns of alpha that match, peft takes the first") {
  const TemporaryFolder temporary;
  const auto base = interchange::open_hf_folder(golden_hf() / "llama");
  fs::copy(golden_lora("llama"), temporary / "adapter", fs::copy_options::recursive);
  const fs::path file = temporary / "adapter" / "adapter_config.json";
  std::string text = read_file(file.string());
  const std::string none = "\"alpha_pattern\": {}";
  text.replace(text.find(none), none.size(),
               "\"alpha_pattern\": {\"q_proj\": 16, \"layers.0.self_attn.q_proj\": 32}");
  write_file_atomic(file, text);
  const auto opened = interchange::open_adapter_folder(temporary / "adapter", base.map);
  std::vector<double> queries;
  for (const interchange::Adapter& a : opened.adapters)
    if (a.a.find("q_proj") != std::string::npos) queries.push_back(a.scale);
  CHECK(queries == std::vector<double>{4, 4});
}

TEST_CASE("a recipe learns before it trains that peft cannot have its adapters") {
  const fs::path phi3 = golden_hf() / "phi3";
  const auto check = [](const Recipe& r) {
    Diagnostics diagnostics;
    interchange::check_consolidated(r, diagnostics);
    return diagnostics;
  };
  const Changes parts{"peft.dim=2", "peft.target_modules=[q_proj,up_proj]"};
  const Diagnostics warned = check(recipe_of(phi3, parts));
  CHECK_FALSE(warned.has_errors());
  REQUIRE(warned.sorted().size() == 1);
  CHECK_THAT(warned.sorted()[0].reason, Contains("qkv_proj"));
  CHECK(check(recipe_of(phi3, with(parts, {"checkpoint.save_consolidated=every"}))).has_errors());
  CHECK(check(recipe_of(phi3, {"peft.dim=2"})).sorted().empty());
  CHECK(
      check(recipe_of(phi3, {"peft.dim=2", "peft.target_modules=[\"*_proj\"]"})).sorted().empty());
  CHECK(check(recipe_of(phi3, kTrained[2].peft)).sorted().empty());
  CHECK(check(recipe_of(golden_hf() / "llama", {"peft.dim=2"})).sorted().empty());
}

}  // namespace parity_lora_peft_test
