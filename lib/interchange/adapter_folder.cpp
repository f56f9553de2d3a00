#include "interchange/adapter_folder.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "storage/fingerprint.h"
#include "storage/finite_values.h"
#include "storage/safetensors.h"

namespace mtrain::interchange {

namespace fs = std::filesystem;
using nlohmann::json;
using Config = nlohmann::ordered_json;  // peft takes the first pattern that matches

namespace {

constexpr std::string_view kAdapterPrefix = "base_model.model.", kOfA = ".lora_A.weight",
                           kOfB = ".lora_B.weight", kOfWeight = ".weight";

// A module of the family, and the rows of an adapter's B that are its own.
struct AdaptedModule {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  const Adapter* adapter;
  int64_t first_row, rows;  // of B
  bool transposed;
};

std::string module_of(const TensorPiece& piece) {
  return piece.hf_name.substr(0, piece.hf_name.size() - kOfWeight.size());
}

// Returns the modules of an adapter. One adapter of a linear whose weights are separate modules of
// the family becomes one for each module, all with the same A.
std::vector<AdaptedModule> modules_of(const Adapter& a, const TensorMap& map) {
  const MappedTensor* const weight = map.find(a.weight);
  MT_CHECK(weight, "the map has no {}", a.weight);
  const int64_t columns = weight->shape[1];
  std::vector<AdaptedModule> modules;
  for (const TensorPiece& p : weight->pieces) {
    const int64_t first = p.first / columns, rows = p.count() / columns;
    const int64_t from = std::max(first, a.first_row),
                  to = std::min(first + rows, a.first_row + a.rows);
    if (from >= to) continue;
    if (from != first || to != first + rows)
      throw UserError(fmt::format("{} is one linear in a {} folder, and {} is an adapter of a part "
                                  "of its rows, which peft cannot have",
                                  module_of(p), map.family().model_type, a.a),
                      "export with --merge; or train with peft.target_modules that name the whole "
                      "linear: qkv_proj, gate_up_proj");
    modules.push_back({module_of(p), &a, from - a.first_row, rows, p.transposed});
  }
  return modules;
}

std::string last_name(const std::string& module) { return module.substr(module.rfind('.') + 1); }

// Returns what target_modules names: the last names of the modules, or their paths if some modules
// of that name have no adapter.
std::vector<std::string> target_names(const std::vector<AdaptedModule>& modules,
                                      const TensorMap& map) {
  std::set<std::string> adapted, names, paths;
  for (const AdaptedModule& m : modules) adapted.insert(m.name);
  for (const std::string& name : adapted) names.insert(last_name(name));
  for (const TensorPiece* p : map.pieces())
    if (p->hf_name.ends_with(kOfWeight) && names.count(last_name(module_of(*p))) &&
        !adapted.count(module_of(*p)))
      return {adapted.begin(), adapted.end()};
  return {names.begin(), names.end()};
}

json number_of(double value) {
  return value == std::floor(value) ? json(int64_t(value)) : json(value);
}

void write_factors(const fs::path& file, const std::vector<AdaptedModule>& modules,
                   const storage::ValueSource& factors, DType dtype, WrittenAdapter& done) {
  std::vector<storage::TensorInfo> tensors;
  for (const AdaptedModule& m : modules) {
    const std::string name = std::string(kAdapterPrefix) + m.name;
    tensors.push_back({name + std::string(kOfA), dtype, factors.shape(m.adapter->a)});
    tensors.push_back({name + std::string(kOfB), dtype, {m.rows, m.adapter->dim}});
  }
  storage::SafetensorsWriter writer(file, tensors, {{"format", "pt"}});
  for (size_t i = 0; i < tensors.size(); ++i) {
    const AdaptedModule& m = modules[i / 2];
    const storage::TensorInfo& t = tensors[i];
    std::vector<float> values(size_t(t.shape.count()));
    const bool of_a = i % 2 == 0;
    factors.read(of_a ? m.adapter->a : m.adapter->b, of_a ? 0 : m.first_row * m.adapter->dim,
                 int64_t(values.size()), values.data());
    with_float(t.dtype, [&]<class T>() {
      std::vector<T> out(values.size());
      for (size_t k = 0; k < values.size(); ++k) out[k] = T(values[k]);
      writer.write_part(t.name, ConstSpan{out.data(), int64_t(out.size()), dtype_of<T>});
    });
    done.parameters += t.shape.count();
    done.bytes += t.bytes();
  }
  writer.commit();
}

// Collects the mistakes of a folder.
class Mistakes {
 public:
  explicit Mistakes(const fs::path& folder) : folder_(folder) {}
  void add(std::string text) {
    if (!std::ranges::count(all_, text)) all_.push_back(std::move(text));
  }
  void throw_if_any() const {
    if (!all_.empty())
      throw UserError(fmt::format("{} cannot be used with this model:\n  {}", folder_.string(),
                                  fmt::join(all_, "\n  ")));
  }

 private:
  const fs::path folder_;
  std::vector<std::string> all_;
};

bool is_set(const Config& config, const char* key) {
  const auto at = config.find(key);
  if (at == config.end() || at->is_null()) return false;
  if (at->is_boolean()) return at->get<bool>();
  if (at->is_string()) return !at->get<std::string>().empty() && *at != "none";
  return !at->empty();
}

void check_settings(const Config& config, Mistakes& mistakes) {
  const auto type = config.find("peft_type");
  if (type != config.end() && !type->is_null() && *type != "LORA")
    mistakes.add(fmt::format("its peft_type is {}; mtrain reads LORA alone", type->dump()));
  struct Row {
    const char *key, *what;
  };
  for (const Row& row :
       {Row{"use_dora", "DoRA, which scales each row of the merged weights"},
        Row{"bias", "trained biases"}, Row{"lora_bias", "biases of B"},
        Row{"modules_to_save", "modules that are trained as a whole"},
        Row{"target_parameters", "adapters of parameters, such as those of experts"},
        Row{"alora_invocation_tokens", "adapters that tokens switch on"},
        Row{"use_qalora", "QA-LoRA's groups of inputs"},
        Row{"use_bdlora", "factors of diagonal blocks"}, Row{"arrow_config", "routed adapters"},
        Row{"kasa_config", "KaSA's singular values"},
        Row{"velora_config", "compressed activations"}, Row{"layer_replication", "repeated layers"},
        Row{"trainable_token_indices", "trained tokens"}})
    if (is_set(config, row.key))
      mistakes.add(fmt::format("{}: {} are not supported", row.key, row.what));
}

// Whether peft's pattern names this module. A pattern that std::regex cannot read is a mistake.
bool names_module(const std::string& pattern, const std::string& module, const char* key,
                  Mistakes& mistakes) {
  try {
    return std::regex_match(module, std::regex("(.*\\.)?(" + pattern + ")"));
  } catch (const std::regex_error&) {
    mistakes.add(fmt::format("{}: the pattern {} is not supported", key, pattern));
    return false;
  }
}

// Returns lora_alpha, or the entry of alpha_pattern for this module.
double alpha_of(const Config& config, const std::string& module, Mistakes& mistakes) {
  constexpr double kDefault = 8;  // of peft
  const auto number = [&](const Config& value, const char* key) {
    if (value.is_number()) return value.get<double>();
    mistakes.add(fmt::format("{}: {} is not a number", key, value.dump()));
    return kDefault;
  };
  const auto patterns = config.find("alpha_pattern"), alpha = config.find("lora_alpha");
  if (patterns != config.end() && patterns->is_object())
    for (const auto& [pattern, value] : patterns->items())
      if (names_module(pattern, module, "alpha_pattern", mistakes))
        return number(value, "alpha_pattern");
  return alpha == config.end() || alpha->is_null() ? kDefault : number(*alpha, "lora_alpha");
}

double scale_of(const Config& config, const std::string& module, int64_t dim, Mistakes& mistakes) {
  const double alpha = alpha_of(config, module, mistakes);
  return is_set(config, "use_rslora") ? alpha / std::sqrt(double(dim)) : alpha / double(dim);
}

}  // namespace

WrittenAdapter write_adapter_folder(const fs::path& folder, const TensorMap& map,
                                    const storage::ValueSource& factors,
                                    const std::vector<Adapter>& adapters, const spec::Lora& lora,
                                    const std::string& base, DType dtype) {
  std::vector<AdaptedModule> modules;
  for (const Adapter& a : adapters)
    for (AdaptedModule& m : modules_of(a, map)) modules.push_back(std::move(m));
  WrittenAdapter done;
  write_factors(folder / kAdapterModel, modules, factors, dtype, done);
  const json config{
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", base},
      {"r", lora.dim},
      {"lora_alpha", number_of(lora.alpha)},
      {"lora_dropout", lora.dropout},
      {"target_modules", target_names(modules, map)},
      {"bias", "none"},
      {"fan_in_fan_out",
       std::ranges::any_of(modules, [](const AdaptedModule& m) { return m.transposed; })},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"use_rslora", false},
      {"use_dora", false},
      {"modules_to_save", nullptr}};
  write_file_atomic(folder / kAdapterConfig, config.dump(2) + "\n");
  return done;
}

void check_adapter_folder(const TensorMap& map, const std::vector<Adapter>& adapters) {
  for (const Adapter& a : adapters) modules_of(a, map);
}

bool has_adapter(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kAdapterConfig, error);
}

AdapterFolder open_adapter_folder(const fs::path& folder, const TensorMap& map) {
  const std::string text = read_file(folder / kAdapterConfig);
  const Config config =
      parse_ordered_json(text, (folder / kAdapterConfig).string(), "export it again");
  if (!config.is_object())
    throw UserError(fmt::format("{} is not a JSON object", (folder / kAdapterConfig).string()));
  Mistakes mistakes(folder);
  check_settings(config, mistakes);
  const auto file = std::make_shared<storage::SafetensorsReader>(folder / kAdapterModel);
  AdapterFolder opened{.factors = {}, .adapters = {}, .fingerprint = {}};
  for (const storage::StoredTensor& t : file->tensors()) {
    std::string module = t.name;
    const bool of_a = module.ends_with(kOfA), of_b = module.ends_with(kOfB);
    if (!module.starts_with(kAdapterPrefix) || (!of_a && !of_b)) {
      mistakes.add(fmt::format("{} is not a factor of a linear", t.name));
      continue;
    }
    module = module.substr(kAdapterPrefix.size(),
                           module.size() - kAdapterPrefix.size() - (of_a ? kOfA : kOfB).size());
    const std::string prefix = std::string(kAdapterPrefix) + module;
    const std::string other = prefix + std::string(of_a ? kOfB : kOfA);
    if (!file->contains(other)) mistakes.add(fmt::format("it has {}, but not {}", t.name, other));
    if (of_b) continue;
    const TensorPiece* const piece = map.find_hf(module + std::string(kOfWeight));
    if (!piece || piece->shape.rank() != 2 || t.shape.size() != 2) {
      mistakes.add(fmt::format("the model has no linear {}", module));
      continue;
    }
    const int64_t columns = piece->transposed ? piece->shape[0] : piece->shape[1],
                  dim = std::max<int64_t>(t.shape[0], 1);
    opened.adapters.push_back({.weight = piece->name,
                               .first_row = piece->first / columns,
                               .rows = piece->count() / columns,
                               .dim = dim,
                               .scale = scale_of(config, module, dim, mistakes),
                               .a = t.name,
                               .b = other});
  }
  if (file->tensors().empty()) mistakes.add("it has no tensors");
  mistakes.throw_if_any();
  opened.factors = file;
  opened.fingerprint = text + storage::weights_fingerprint({file.get()});
  return opened;
}

}  // namespace mtrain::interchange
