// A run whose adapters are trained beside multi-token prediction: its exports, and what it
// generates.
#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "interchange/export.h"
#include "lora_peft_testing.h"
#include "run/data_identity.h"
#include "run/loaded_model.h"
#include "run/run_checkpoint.h"
#include "storage/safetensors_folder.h"
#include "test/support/comm_testing.h"

namespace parity_tuned_predictions_test {

using namespace mtrain;
using namespace lora_peft_testing;
using Catch::Matchers::Contains;

namespace {

// Writes the golden deepseek_v3 with a layer of multi-token prediction: its last layer once more,
// scaled. Returns the folder.
fs::path with_further_layer(const fs::path& to) {
  const storage::SafetensorsFolder from(golden_hf() / "deepseek_v3");
  std::vector<storage::TensorInfo> tensors;
  std::vector<std::vector<float>> values;
  const auto add = [&](const std::string& name, const Shape& shape, std::vector<float> of_name) {
    tensors.push_back({name, DType::f32, shape});
    values.push_back(std::move(of_name));
  };
  const std::string last = "model.layers.1.", further = "model.layers.2.";
  for (const storage::StoredTensor* t : from.tensors()) {
    const std::vector<float> own = values_of(from, t->name);
    const Shape shape = from.shape(t->name);
    add(t->name, shape, own);
    if (t->name == "model.embed_tokens.weight") add(further + "embed_tokens.weight", shape, own);
    if (t->name == "lm_head.weight") add(further + "shared_head.head.weight", shape, own);
    if (!t->name.starts_with(last)) continue;
    std::vector<float> scaled = own;
    for (float& value : scaled) value *= 0.5f;
    add(further + t->name.substr(last.size()), shape, std::move(scaled));
  }
  const int64_t H = from.shape("model.norm.weight")[0];
  for (const char* norm : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"})
    add(further + norm, {H}, std::vector<float>(size_t(H), 1.25f));
  std::vector<float> proj(size_t(2 * H * H));
  for (size_t i = 0; i < proj.size(); ++i) proj[i] = 0.01f * float(i % 17) - 0.08f;
  add(further + "eh_proj.weight", {H, 2 * H}, std::move(proj));
  fs::create_directories(to);
  write_tensors(to / "model.safetensors", tensors, values);
  std::string config = read_file(golden_hf() / "deepseek_v3" / "config.json");
  const std::string none = "\"num_nextn_predict_layers\": 0";
  config.replace(config.find(none), none.size(), "\"num_nextn_predict_layers\": 1");
  write_file_atomic(to / "config.json", config);
  return to;
}

// Returns the logits after a prompt of several tokens, and after each of the next tokens that the
// model itself chooses.
std::vector<std::vector<float>> generated_logits(const fs::path& model, const std::string& adapter,
                                                 int ranks) {
  std::vector<std::vector<float>> logits;
  run_ranks(ranks, "thread", [&](TestRank& rank) {
    const run::StoredModel stored = run::open_model(model, {}, "NullTokenizer", adapter);
    run::LoadedModel loaded(rank.world, {}, stored, DType::f32, 1, 16);
    std::vector<int32_t> ids{3, 14, 15, 9, 26, 5};
    int64_t first = 0;
    for (int i = 0; i < 4; ++i) {
      const std::vector<float> next = loaded.cached().forward(
          {{.slot = 0, .first = first, .ids = ids, .of_prompt = first == 0}})[0];
      first += int64_t(ids.size());
      ids = {int32_t(std::ranges::max_element(next) - next.begin())};
      if (rank.rank() == 0) logits.push_back(next);
    }
  });
  return logits;
}

}  // namespace

TEST_CASE("a run with adapters beside multi-token prediction is exported and generates") {
  const TemporaryFolder temporary;
  const fs::path base = with_further_layer(temporary / "base");
  const auto tuned_model = std::ranges::find(kTrained, "deepseek_v3", &TunedModel::name);
  const Changes changes = with(tuned_model->peft, {"model.mtp_num_layers=1"});
  const auto device = Device::cpu(1);
  train::Trainer t = tuned(*device, base, changes);
  run::start_from_folder(t);
  for (int i = 0; i < 3; ++i) CHECK(t.step().mtp_losses.size() == 1);
  const run::DataIdentity data(t.plan());
  const fs::path from = run::save_run(t, temporary / "checkpoints", {.data = &data});

  // The adapter names no tensor of the further layer.
  interchange::export_hf(from, temporary / "adapter", {});
  const storage::SafetensorsReader adapter(temporary / "adapter/adapter_model.safetensors");
  CHECK(adapter.tensors().size() == 2 * 5 * 2);  // A and B of five linears of two layers
  for (const storage::StoredTensor& a : adapter.tensors())
    CHECK(a.name.find(".layers.2.") == a.name.npos);

  // The merged folder has the base's further layer, unchanged, and changed linears before it.
  interchange::export_hf(from, temporary / "merged", {.dtype = DType::f32, .merge = true});
  const storage::SafetensorsFolder before(base), merged(temporary / "merged");
  CHECK(merged.tensors().size() == before.tensors().size());
  std::set<std::string> changed;
  for (const storage::StoredTensor* tensor : before.tensors())
    if (values_of(merged, tensor->name) != values_of(before, tensor->name))
      changed.insert(tensor->name);
  CHECK(changed.size() == 2 * 5);
  for (const std::string& name : changed) CHECK_THAT(name, Contains("_proj"));
  for (const std::string& name : changed) CHECK(name.find("layers.2.") == name.npos);
  const auto config = nlohmann::json::parse(read_file(temporary / "merged/config.json"));
  CHECK(config.at("num_nextn_predict_layers") == 1);

  const auto own = generated_logits(from, "", 1);
  REQUIRE(own.size() == 4);
  CHECK((own == generated_logits(temporary / "merged", "", 1)));
  CHECK((own == generated_logits(base, (temporary / "adapter").string(), 1)));
  CHECK((own == generated_logits(base, from.string(), 1)));
  CHECK_FALSE((own == generated_logits(base, "", 1)));
  const auto two = generated_logits(from, "", 2);
  for (size_t i = 0; i < own.size(); ++i) CHECK(relative_l2(two[i], own[i]) < 1e-5);
}

}  // namespace parity_tuned_predictions_test
