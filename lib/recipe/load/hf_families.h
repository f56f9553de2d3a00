// The families of models whose config.json is read and written, with the keys that each has.
#pragma once
#include <span>
#include <string_view>

#include "recipe/load/hf_keys.h"

namespace mtrain::recipe {

// A key of a family, and the value that transformers takes if config.json leaves the key out; an
// empty one leaves the field's own default.
struct HfFamilyKey {
  std::string_view key, omitted;
  std::string_view field = {};  // that the key sets in this family, if it is another one
};

// A key that may have these values alone, which are separated by blanks: what mtrain does.
struct HfOnlyValue {
  std::string_view key, values;
};

struct HfFamily {
  std::string_view model_type;
  std::span<const HfFamilyKey> keys;  // what each of them sets: see hf_keys.cpp
  HfWindow window = HfWindow::none;
  int64_t window_pattern = 0;
  HfRope rope = HfRope::any;
  // Routers as DeepSeek-V3's: sigmoids, groups that are ranked by two experts, and biases.
  bool deepseek_v3_router = false;
  std::span<const HfOnlyValue> only = {};
};

// Returns all families.
std::span<const HfFamily> hf_families();

// Returns the family of a model_type; null for one that mtrain does not build.
const HfFamily* find_hf_family(std::string_view model_type);

}  // namespace mtrain::recipe
