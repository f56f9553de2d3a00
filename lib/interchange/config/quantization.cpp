#include "interchange/config/quantization.h"

#include <algorithm>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace mtrain::interchange {

namespace {

using nlohmann::json;

constexpr const char* kKey = "quantization_config";
constexpr const char* kDequantize =
    "use the folder of the model before its quantization, or write the dequantized weights by "
    "transformers: model.dequantize().save_pretrained(folder)";

// A key, and the values with which weights are read; no values: any.
struct QuantizationKey {
  const char* key;
  std::vector<json> values;
};

// How activations were quantized, and which linears were not, changes no weight: the type of each
// tensor says what it is.
const std::vector<QuantizationKey>& quantization_keys() {
  static const std::vector<QuantizationKey> keys{{"quant_method", {"fp8"}},
                                                 {"fmt", {"e4m3", "float8_e4m3fn"}},
                                                 {"weight_block_size", {}},
                                                 {"activation_scheme", {"dynamic"}},
                                                 {"scale_fmt", {"float", "ue8m0"}},
                                                 {"modules_to_not_convert", {}},
                                                 {"ignored_layers", {}},
                                                 {"dequantize", {}}};
  return keys;
}

UserError refusal(const std::string& path, const std::string& what) {
  return UserError(fmt::format("{}: {}: {}", path, kKey, what), kDequantize);
}

void check_quantization_keys(const json& config, const std::string& path) {
  for (const auto& [key, value] : config.items()) {
    const auto known = std::ranges::find_if(
        quantization_keys(), [&, &name = key](const auto& k) { return k.key == name; });
    if (value.is_null()) continue;
    if (known == quantization_keys().end())
      throw refusal(path, fmt::format("the key {} is not supported", key));
    if (!known->values.empty() && std::ranges::count(known->values, value) == 0)
      throw refusal(path, fmt::format("{} {} is not supported; mtrain reads weights with {} {}",
                                      key, value.dump(), key, known->values.front().dump()));
  }
}

bool is_block_size(const json& value) {
  return value.is_array() && value.size() == 2 && std::ranges::all_of(value, [](const json& n) {
           return n.is_number_unsigned() && n.get<uint64_t>() >= 1 && n.get<uint64_t>() < 1u << 31;
         });
}

}  // namespace

std::optional<storage::ScaleBlock> read_scale_block(std::string_view text,
                                                    const std::string& path) {
  const json all = parse_json(text, path);
  if (!all.is_object() || !all.contains(kKey)) return std::nullopt;
  const json& config = all.at(kKey);
  if (config.is_null() || (config.is_structured() && config.empty())) return std::nullopt;
  if (!config.is_object()) throw refusal(path, "it is not a JSON object");
  const json method = config.value("quant_method", json());
  // The keys of other methods are not looked at.
  if (method != "fp8")
    throw refusal(path,
                  method.is_null()
                      ? "it says that the weights are quantized, and names no quant_method"
                      : fmt::format("weights that {} has quantized cannot be read", method.dump()));
  check_quantization_keys(config, path);
  const json block = config.value("weight_block_size", json());
  if (!is_block_size(block))
    throw refusal(path, fmt::format("weight_block_size must be two positive numbers such as [128, "
                                    "128], and is {}; mtrain reads 8-bit weights with a scale for "
                                    "each block",
                                    block.dump()));
  return storage::ScaleBlock{block[0].get<int64_t>(), block[1].get<int64_t>()};
}

}  // namespace mtrain::interchange
