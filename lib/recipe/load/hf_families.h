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
};

struct HfFamily {
  std::string_view model_type;
  std::span<const HfFamilyKey> keys;  // what each of them sets: see hf_keys.cpp
  HfWindow window = HfWindow::none;
  HfRope rope = HfRope::any;
};

// Returns all families.
std::span<const HfFamily> hf_families();

}  // namespace mtrain::recipe
