// The keys of Hugging Face's config.json for each family of models, by which configurations are
// read (recipe/load/hf_config.h) and written (interchange/config.h): one table says which field a
// key sets (hf_keys.cpp), and one for each family which keys it has (hf_families.cpp).
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace mtrain::recipe {

// A key of config.json, the field that it sets, and the value that transformers takes if the key is
// left out; an empty one leaves the field's own default. A key without a field is read and written
// beside the others, with the layers' positions and windows, or changes nothing in its family.
struct HfKey {
  std::string_view key, field, omitted;
  bool recipe_wins = false;          // it says how to train, not what the model is
  std::string_view other_name = {};  // another name of the key, in other versions of transformers
};

// Returns the keys of a family of models; none for one that mtrain does not build.
std::vector<HfKey> hf_keys(std::string_view model_type);

// Returns the families that have keys: "llama", "mistral", ...
const std::vector<std::string_view>& hf_model_types();

// How a family says which layers have a sliding window.
enum class HfWindow {
  every_layer,   // sliding_window, if it is not null, holds for all layers
  switched,      // the same, if use_sliding_window is true
  from_layer,    // use_sliding_window, for the layers from max_window_layers on
  late_layers,   // sliding_window, if it is not null, for the layers from max_window_layers on
  alternating,   // use_sliding_window, for every other layer before max_window_layers
  patterned,     // sliding_window, for all layers but every nth one; n is in HfFamily
  without_rope,  // use_sliding_window, for the layers without rotary positions
  none,          // the family has no windows
};
HfWindow hf_window(std::string_view model_type);

// Which types of rotary positions a family has.
enum class HfRope {
  any,
  phi3,            // default and longrope, which su and yarn are other names of
  linear_by_type,  // any; transformers 4 takes default and linear alone, which it calls `type`
  of_layer_types   // any, and default ones of another base in layers with a window
};
HfRope hf_rope(std::string_view model_type);

}  // namespace mtrain::recipe
