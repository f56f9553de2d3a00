// Any text is refused as a config.json with diagnostics, or describes a model. If some family
// computes the model, its config.json describes the same model and gives the same text when it is
// written again; each of its tensors has names.
#include <string>

#include "base/error.h"
#include "interchange/config.h"
#include "interchange/config/reader.h"
#include "interchange/families.h"
#include "interchange/model_differences.h"
#include "interchange/tensor_map.h"
#include "recipe/model_spec.h"

using namespace mtrain;

namespace {

constexpr int64_t kMaxLayers = 64, kMaxExperts = 64;  // for which tensors are listed

void attempt(const std::string& json) {
  Diagnostics diagnostics;
  const Recipe r = interchange::read_config_json(json, "config.json", diagnostics);
  if (diagnostics.has_errors()) {
    MT_CHECK(!diagnostics.text(recipe::Severity::error).empty());
    return;
  }
  if (r.model.num_layers > kMaxLayers) return;  // models are compared layer by layer
  std::string family, text;
  try {
    text = interchange::write_config(r, {json, "float32"}, family);
  } catch (const UserError&) {
    return;
  }
  Diagnostics none;
  const Recipe again = interchange::read_config_json(text, "config.json", none);
  MT_CHECK(!none.has_errors(), "{}", none.text(recipe::Severity::error));
  const auto differences = interchange::model_differences(r.model, again.model);
  MT_CHECK(differences.empty(), "{}", differences[0].text());
  std::string same;
  MT_CHECK(interchange::write_config(again, {text, "float32"}, same) == text, "{}", text);
  MT_CHECK(same == family, "{} and {}", same, family);
  if (r.model.moe.num_experts > kMaxExperts) return;
  const interchange::TensorMap map(recipe::model_spec(r.model), *interchange::find_family(family));
  MT_CHECK(map.parameters() > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  attempt(text);
  // Few keys make a model, so the fuzzed part is also put into complete files.
  for (const char* family : {"llama", "qwen2_moe", "gpt2"})
    attempt(std::string("{\"model_type\":\"") + family +
            "\",\"hidden_size\":32,\"num_attention_heads\":4,\"num_hidden_layers\":2,"
            "\"intermediate_size\":40,\"vocab_size\":64,\"max_position_embeddings\":64," +
            text + "}");
  return 0;
}
