// The families of models. A family is one value, made in a file of interchange/families/: the keys
// of its config.json, the defaults of its architecture, and its names of mtrain's tensors.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "recipe/load/targets.h"
#include "recipe/schema/model.h"
#include "spec/tensors.h"

namespace mtrain::interchange {

using recipe::ModelConfig;
// The rows of mtrain's tensor that a Hugging Face tensor holds. mtrain stacks queries, keys and
// values in one matrix, and the gate and up projections of a gated MLP in another.
using spec::Rows;

// Maps a Hugging Face tensor (`hf_name`) to mtrain's (`name`), for reading and writing
// (tensor_map.h). In the names {l} is a layer and {e} an expert. A tensor with {e} is one expert's
// matrix of mtrain's three-dimensional tensor.
struct TensorRow {
  std::string_view name, hf_name;
  Rows rows = Rows::all;
  bool transposed = false;  // Hugging Face's is (inputs, outputs), as in GPT-2's Conv1D
};

// A key of config.json, and the value that transformers uses if the key is absent. If `omitted` is
// empty, the field keeps its own default.
struct FamilyKey {
  std::string_view key, omitted;
  // The field that the key sets in this family, if config/keys.cpp has a different one or none.
  std::string_view field = {};
  bool recipe_wins = false;  // with `field`: a training setting, which the recipe may override
};

// A key whose value must be one of `values`, separated by blanks: those that mtrain computes. If
// `values` is kAnyValue, a reader of its own reads the key.
constexpr std::string_view kAnyValue = "*";
struct OnlyValue {
  std::string_view key, values;
};

// The keys by which a family says which layers have a sliding window.
enum class WindowRule {
  every_layer,   // all layers, if sliding_window is not null
  switched,      // as every_layer, if use_sliding_window is true
  from_layer,    // as switched, for the layers from max_window_layers on
  late_layers,   // as every_layer, for the layers from max_window_layers on
  alternating,   // as switched, for every other layer before max_window_layers
  patterned,     // as every_layer, except every nth layer; window_pattern is the default of n
  without_rope,  // as switched, for the layers without rotary positions
  none,          // the family has no windows
};

// The types of rotary positions that a family has.
enum class RopeRule {
  any,
  phi3,            // default and longrope; su and yarn are other names of longrope
  linear_by_type,  // any; transformers 4 has only default and linear, under the key `type`
  of_layer_types   // any; layers with a window have default ones with their own base
};

struct Family {
  std::string_view model_type;       // in config.json, and the name of the architecture
  std::string_view class_name = {};  // in config.json's list of architectures
  // A model_type under which a publisher writes models of the family. Exports have the family's
  // own.
  std::string_view other_type = {};
  // The class of its configuration in transformers, and its name within the names of
  // Megatron-Bridge's providers. Recipes of other systems may name these.
  std::string_view config_class = {}, bridge_name = {};
  std::span<const FamilyKey> keys = {};  // empty: mtrain reads no folders of the family
  std::span<const OnlyValue> only = {};
  WindowRule window = WindowRule::none;
  int64_t window_pattern = 0;
  RopeRule rope = RopeRule::any;
  // Whether the router is DeepSeek-V3's: sigmoid scores, groups ranked by two experts, and biases.
  // Or DeepSeek-V2's, which may choose from groups ranked by their best expert.
  bool deepseek_v3_router = false, deepseek_v2_router = false;
  // Whether a list, mlp_layer_types, says which layers have experts.
  bool lists_mlp_types = false;
  // Sets the published choices (norm, positions, biases) in which the family differs from Llama.
  void (*defaults)(ModelConfig&) = nullptr;
  std::string_view prefix = "model.";  // before base-model names; a base model's folder lacks it
  std::vector<TensorRow> rows = {};    // the names that transformers writes
  std::vector<TensorRow> copies = {};  // of tables, which a layer of multi-token prediction has
  std::vector<TensorRow> fused = {};   // replaces the rows with the same `name` if a folder has it
  // Suffixes of the names of buffers that older versions of transformers wrote. Nothing reads them.
  std::span<const std::string_view> buffers = {};
  // The key of config.json with the number of multi-token prediction layers after the model's own
  // ("": none), and its value if absent. mtrain reads these layers if the recipe asks for them.
  std::string_view mtp_layers_key = {};
  int64_t mtp_layers_default = 0;
  std::vector<recipe::Target> targets = {};  // further classes that a recipe's `_target_` may name
};

// Returns all families.
const std::vector<Family>& families();

// Whether folders of the family have the model's layers of multi-token prediction.
bool names_predictions(const Family& family, const ModelConfig& model);

// Returns the family with this model_type or other_type; null if mtrain reads no folders of it.
const Family* find_family(std::string_view model_type);

}  // namespace mtrain::interchange
