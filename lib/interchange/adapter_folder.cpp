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
#include "interchange/expert_factors.h"
#include "storage/fingerprint.h"
#include "storage/finite_values.h"
#include "storage/safetensors.h"

namespace mtrain::interchange {

namespace fs = std::filesystem;
using nlohmann::json;
using Config = nlohmann::ordered_json;  // peft takes the first pattern that matches

namespace {

constexpr std::string_view kAdapterPrefix = "base_model.model.", kOfA = ".lora_A.weight",
                           kOfB = ".lora_B.weight", kOfWeight = ".weight",
                           kExperts = ".mlp.experts", kGateUp = ".gate_up.weight",
                           kInner = ".base_layer";

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
  if (a.experts > 0) return {};
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

std::vector<AdaptedModule> all_modules(const std::vector<Adapter>& adapters, const TensorMap& map) {
  std::vector<AdaptedModule> all;
  for (const Adapter& a : adapters)
    for (AdaptedModule& m : modules_of(a, map)) all.push_back(std::move(m));
  return all;
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

// The matrices of all experts of a layer, which peft adapts as one parameter of their module.
struct AdaptedExperts {
  std::string module, parameter;  // "model.layers.0.mlp.experts", "gate_up_proj"
  const Adapter* adapter;         // of the first expert
  bool inner;                     // the module's other parameter is adapted around it
};

// Returns the parameter of a weight: gate_up_proj or down_proj.
std::string expert_parameter(std::string_view weight) {
  return weight.ends_with(kGateUp) ? "gate_up_proj" : "down_proj";
}

std::vector<AdaptedExperts> experts_of(const std::vector<Adapter>& adapters) {
  std::vector<AdaptedExperts> all;
  for (const Adapter& a : adapters) {
    if (a.experts == 0 || a.expert > 0) continue;
    const std::string module =
        "model." + a.weight.substr(0, a.weight.find(kExperts)) + std::string(kExperts);
    // peft wraps parameters in the order of their declaration.
    if (!all.empty() && all.back().module == module) all.back().inner = true;
    all.push_back({module, expert_parameter(a.weight), &a, false});
  }
  return all;
}

// Returns what target_parameters names: the same for all layers, or each path if the experts of
// some layers have no adapter.
std::vector<std::string> target_parameters(const std::vector<AdaptedExperts>& experts,
                                           const TensorMap& map) {
  std::set<std::string> names, paths;
  for (const AdaptedExperts& e : experts) {
    names.insert("mlp.experts." + e.parameter);
    paths.insert(e.module + "." + e.parameter);
  }
  for (const MappedTensor& t : map.tensors()) {
    const size_t at = t.name.find(kExperts);
    if (at == std::string::npos) continue;
    const std::string name = expert_parameter(t.name);
    if (names.count("mlp.experts." + name) &&
        !paths.count("model." + t.name.substr(0, at) + std::string(kExperts) + "." + name))
      return {paths.begin(), paths.end()};
  }
  return {names.begin(), names.end()};
}

// A factor as peft's file has it.
struct WrittenFactor {
  std::string name;
  Shape shape;
  std::function<std::vector<float>()> values;
};

// Returns the factor of all experts in peft's form.
std::vector<float> of_experts(const storage::ValueSource& factors, const std::string& name,
                              const Strides& strides) {
  const Shape shape = factors.shape(name);
  std::vector<float> values(size_t(shape.count())), written(values.size());
  factors.read(name, 0, int64_t(values.size()), values.data());
  size_t at = 0;
  for (int64_t e = 0; e < shape[0]; ++e)
    for (int64_t i = 0; i < shape[1]; ++i)
      for (int64_t j = 0; j < shape[2]; ++j)
        written[size_t(e * strides[0] + i * strides[1] + j * strides[2])] = values[at++];
  return written;
}

std::vector<WrittenFactor> factors_to_write(const std::vector<AdaptedModule>& modules,
                                            const std::vector<AdaptedExperts>& experts,
                                            const storage::ValueSource& factors) {
  std::vector<WrittenFactor> all;
  const auto add = [&](const std::string& module, const Shape& a, const Shape& b, auto of_a,
                       auto of_b) {
    const std::string name = std::string(kAdapterPrefix) + module;
    all.push_back({name + std::string(kOfA), a, std::move(of_a)});
    all.push_back({name + std::string(kOfB), b, std::move(of_b)});
  };
  for (const AdaptedModule& m : modules) {
    const auto read = [&factors](const std::string& name, int64_t first, int64_t count) {
      std::vector<float> values(static_cast<size_t>(count));
      factors.read(name, first, count, values.data());
      return values;
    };
    const Adapter& a = *m.adapter;
    const Shape shape_of_a = factors.shape(a.a), shape_of_b{m.rows, a.dim};
    add(
        m.name, shape_of_a, shape_of_b, [=, &a] { return read(a.a, 0, shape_of_a.count()); },
        [=, &a, first = m.first_row * a.dim] { return read(a.b, first, shape_of_b.count()); });
  }
  for (const AdaptedExperts& e : experts) {
    const Adapter& a = *e.adapter;
    const int64_t columns = factors.shape(a.a)[2], E = a.experts;
    add(
        e.module + (e.inner ? std::string(kInner) : ""), {E * a.dim, columns}, {a.rows, E * a.dim},
        [&factors, &a, strides = strides_of_a(E, a.dim, columns)] {
          return of_experts(factors, a.a, strides);
        },
        [&factors, &a, strides = strides_of_b(E, a.rows, a.dim)] {
          return of_experts(factors, a.b, strides);
        });
  }
  return all;
}

void write_factors(const fs::path& file, const std::vector<WrittenFactor>& factors, DType dtype,
                   WrittenAdapter& done) {
  std::vector<storage::TensorInfo> tensors;
  for (const WrittenFactor& f : factors) tensors.push_back({f.name, dtype, f.shape});
  storage::SafetensorsWriter writer(file, tensors, {{"format", "pt"}});
  for (size_t i = 0; i < tensors.size(); ++i) {
    const storage::TensorInfo& t = tensors[i];
    const std::vector<float> values = factors[i].values();
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
  const std::vector<AdaptedModule> modules = all_modules(adapters, map);
  const std::vector<AdaptedExperts> experts = experts_of(adapters);
  WrittenAdapter done;
  write_factors(folder / kAdapterModel, factors_to_write(modules, experts, factors), dtype, done);
  json config{{"peft_type", "LORA"},
              {"task_type", "CAUSAL_LM"},
              {"base_model_name_or_path", base},
              {"r", lora.dim},
              {"lora_alpha", number_of(lora.alpha)},
              {"lora_dropout", experts.empty() ? lora.dropout : 0},  // peft has none for parameters
              {"target_modules", target_names(modules, map)},
              {"bias", "none"},
              {"fan_in_fan_out",
               std::ranges::any_of(modules, [](const AdaptedModule& m) { return m.transposed; })},
              {"inference_mode", true},
              {"init_lora_weights", true},
              {"use_rslora", false},
              {"use_dora", false},
              {"modules_to_save", nullptr}};
  if (!experts.empty()) {
    config["target_parameters"] = target_parameters(experts, map);
    if (lora.expert_dim != lora.dim)
      config["rank_pattern"] = {{"experts.gate_up_proj", lora.expert_dim},
                                {"experts.down_proj", lora.expert_dim}};
  }
  write_file_atomic(folder / kAdapterConfig, config.dump(2) + "\n");
  return done;
}

int64_t adapter_folder_bytes(const TensorMap& map, const storage::ValueSource& factors,
                             const std::vector<Adapter>& adapters, DType dtype) {
  int64_t bytes = 0;
  for (const WrittenFactor& f :
       factors_to_write(all_modules(adapters, map), experts_of(adapters), factors))
    bytes += f.shape.count() * dtype_size(dtype);
  return bytes;
}

void check_adapter_folder(const TensorMap& map, const std::vector<Adapter>& adapters) {
  for (const Adapter& a : adapters) modules_of(a, map);
}

bool has_adapter(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kAdapterConfig, error);
}

namespace {

// What an adapter's file is read with, and into.
struct OpenedFile {
  const storage::SafetensorsReader& file;
  const TensorMap& map;
  const Config& config;
  ExpertFactors& factors;
  std::vector<Adapter>& adapters;
  Mistakes& mistakes;
};

// A weight of experts, and whether A and B of its adapter are in each other's place.
struct ExpertForm {
  const MappedTensor* weight = nullptr;
  bool swapped = false;
};

// Finds the weight that factors of x columns and y rows fit. If both forms fit gate_up, that of the
// adapter around it decides, whose A has `outer` columns; 0: there is none.
ExpertForm expert_form(const std::string& experts, const TensorMap& map, int64_t x, int64_t y,
                       int64_t outer) {
  const MappedTensor *const gate_up = map.find(experts + ".gate_up.weight"), *const down = map.find(
                                                                                 experts +
                                                                                 ".down.weight");
  const auto fits = [&](const MappedTensor* w, bool swapped) {
    return w && w->shape[2] == (swapped ? y : x) && w->shape[1] == (swapped ? x : y);
  };
  if (fits(gate_up, false) && fits(gate_up, true))
    return {gate_up, down && outer != 0 && outer != down->shape[2]};
  for (const bool swapped : {false, true})
    for (const MappedTensor* w : {gate_up, down})
      if (fits(w, swapped)) return {w, swapped};
  return {};
}

// Adds the adapters of the experts of `module`, "model.layers.0.mlp.experts", whose A and B are
// these tensors.
void open_experts(const OpenedFile& in, const std::string& module, const std::string& a,
                  const std::string& b) {
  const Shape shape_of_a = in.file.shape(a), shape_of_b = in.file.shape(b);
  const std::string outer = std::string(kAdapterPrefix) + module + std::string(kOfA);
  const bool inner = a != outer && in.file.contains(outer);
  const size_t at = module.find("layers.");
  const auto [weight, swapped] =
      expert_form(at == std::string::npos ? module : module.substr(at), in.map, shape_of_a[1],
                  shape_of_b[0], inner ? in.file.shape(outer)[1] : 0);
  const int64_t experts = weight ? weight->shape[0] : 1, stacked = shape_of_a[0];
  if (!weight || stacked % experts != 0 || stacked == 0 || shape_of_b[1] != stacked)
    return in.mistakes.add(fmt::format("{} does not fit experts of the model", a));
  const int64_t rows = weight->shape[1], columns = weight->shape[2], dim = stacked / experts;
  const std::string &of_a = swapped ? b : a, &of_b = swapped ? a : b;
  in.factors.add(of_a, {experts, dim, columns}, strides_of_a(experts, dim, columns, swapped));
  in.factors.add(of_b, {experts, rows, dim}, strides_of_b(experts, rows, dim, swapped));
  const double scale =
      scale_of(in.config, module + "." + expert_parameter(weight->name), dim, in.mistakes);
  for (int64_t e = 0; e < experts; ++e)
    in.adapters.push_back({.weight = weight->name,
                           .first_row = e * rows,
                           .rows = rows,
                           .dim = dim,
                           .scale = scale,
                           .a = of_a,
                           .b = of_b,
                           .experts = experts,
                           .expert = e});
}

// Returns the module of experts that an adapter of that module belongs to; "" if it is another.
std::string experts_module(std::string module) {
  if (module.ends_with(kInner)) module.resize(module.size() - kInner.size());
  return module.ends_with(kExperts) ? module : "";
}

}  // namespace

AdapterFolder open_adapter_folder(const fs::path& folder, const TensorMap& map) {
  const std::string text = read_file(folder / kAdapterConfig);
  const Config config =
      parse_ordered_json(text, (folder / kAdapterConfig).string(), "export it again");
  if (!config.is_object())
    throw UserError(fmt::format("{} is not a JSON object", (folder / kAdapterConfig).string()));
  Mistakes mistakes(folder);
  check_settings(config, mistakes);
  const auto file = std::make_shared<storage::SafetensorsReader>(folder / kAdapterModel);
  const auto factors = std::make_shared<ExpertFactors>(file);
  AdapterFolder opened{.factors = factors, .adapters = {}, .fingerprint = {}};
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
    if (const std::string experts = experts_module(module); !experts.empty()) {
      if (t.shape.size() == 2 && file->contains(other) && file->shape(other).rank() == 2)
        open_experts({*file, map, config, *factors, opened.adapters, mistakes}, experts, t.name,
                     other);
      else
        mistakes.add(fmt::format("{} is not a matrix", t.name));
      continue;
    }
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
  opened.fingerprint = text + storage::weights_fingerprint({file.get()});
  return opened;
}

}  // namespace mtrain::interchange
