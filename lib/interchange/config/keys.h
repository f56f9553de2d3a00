// The keys of config.json, for reading (reader.h) and writing (config.h). keys.cpp says which field
// a key sets, and each family lists its keys (families/).
#pragma once
#include <string_view>
#include <vector>

#include "interchange/families.h"

namespace mtrain::interchange {

// A key of config.json, the field that it sets, and the value that transformers uses if the key is
// absent. If `omitted` is empty, the field keeps its own default. A key without a field belongs to
// positions or windows, which other code reads and writes, or its family ignores it.
struct ConfigKey {
  std::string_view key, field, omitted;
  bool recipe_wins = false;          // a training setting, which the recipe may override
  std::string_view other_name = {};  // its name in other versions of transformers
};

// Returns the keys of a family of models.
std::vector<ConfigKey> config_keys(const Family& family);

// Returns the names of the families that have keys: "llama", "mistral", ...
std::vector<std::string_view> model_types();

}  // namespace mtrain::interchange
