// Families of models. A family is one value, made in its file of interchange/families/: the keys of
// its config.json, the defaults of its architecture, and its names of the tensors that mtrain has.
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
// Which rows of mtrain's a tensor of theirs holds: mtrain has queries, keys and values in one
// matrix, and the gate and the input projection of a gated MLP in another.
using spec::Rows;

// A tensor of theirs, read in both directions (interchange/tensor_map.h). In the names {l} stands
// for a layer and {e} for an expert, whose matrix is one of the three dimensions of mtrain's
// tensor.
struct TensorRow {
  std::string_view ours, theirs;
  Rows rows = Rows::all;
  bool transposed = false;  // theirs is (inputs, outputs), as GPT-2's Conv1D has it
};

// A key of config.json, and the value that transformers takes if it is left out; an empty one
// leaves the field's own default.
struct FamilyKey {
  std::string_view key, omitted;
  // The field that the key sets in this family, if interchange/config/keys.cpp has another or none.
  std::string_view field = {};
  bool recipe_wins = false;  // of such a field: it says how to train, not what the model is
};

// A key that may have these values alone, which are separated by blanks: what mtrain does.
struct OnlyValue {
  std::string_view key, values;
};

// How a family says which layers have a sliding window.
enum class WindowRule {
  every_layer,   // sliding_window, if it is not null, holds for all layers
  switched,      // the same, if use_sliding_window is true
  from_layer,    // use_sliding_window, for the layers from max_window_layers on
  late_layers,   // sliding_window, if it is not null, for the layers from max_window_layers on
  alternating,   // use_sliding_window, for every other layer before max_window_layers
  patterned,     // sliding_window, for all layers but every nth one; n is window_pattern
  without_rope,  // use_sliding_window, for the layers without rotary positions
  none,          // the family has no windows
};

// Which types of rotary positions a family has.
enum class RopeRule {
  any,
  phi3,            // default and longrope, which su and yarn are other names of
  linear_by_type,  // any; transformers 4 takes default and linear alone, which it calls `type`
  of_layer_types   // any, and default ones of another base in layers with a window
};

struct Family {
  std::string_view model_type;       // of config.json, and the name of the architecture
  std::string_view class_name = {};  // in its architectures
  // The class of its configuration in transformers, and its word in the names of Megatron-Bridge's
  // providers, where recipes of other systems may name it.
  std::string_view config_class = {}, bridge_name = {};
  std::span<const FamilyKey> keys = {};  // none: no folders of the family are read
  std::span<const OnlyValue> only = {};
  WindowRule window = WindowRule::none;
  int64_t window_pattern = 0;
  RopeRule rope = RopeRule::any;
  // Routers as DeepSeek-V3's: sigmoids, groups that are ranked by two experts, and biases.
  bool deepseek_v3_router = false;
  // Sets the published choices (norm, positions, biases) in which the family differs from Llama.
  void (*defaults)(ModelConfig&) = nullptr;
  std::string_view prefix = "model.";  // before names of the base model; a folder of that lacks it
  std::vector<TensorRow> rows = {};    // how transformers writes them
  std::vector<TensorRow> fused = {};   // instead of the rows of the same `ours`, if a folder has it
  // Ends of the names of buffers that older versions wrote and nothing reads.
  std::span<const std::string_view> buffers = {};
  // The key of config.json with the number of layers behind the model's own that predict further
  // tokens, and its value if it is left out. They are not built, and left out; "": there are none.
  std::string_view further_layers = {};
  int64_t further_layers_omitted = 0;
  std::vector<recipe::Target> targets = {};  // further classes that stand for it in a recipe
};

// Returns all families.
const std::vector<Family>& families();

// Returns the family whose folders have this model_type; null if none are read.
const Family* find_family(std::string_view model_type);

}  // namespace mtrain::interchange
