// The keys of config.json, by which configurations are read (reader.h) and written (config.h): one
// table says which field a key sets (keys.cpp), and each family which keys it has (families/).
#pragma once
#include <string_view>
#include <vector>

#include "interchange/families.h"

namespace mtrain::interchange {

// A key of config.json, the field that it sets, and the value that transformers takes if the key is
// left out; an empty one leaves the field's own default. A key without a field is read and written
// beside the others, with the layers' positions and windows, or changes nothing in its family.
struct ConfigKey {
  std::string_view key, field, omitted;
  bool recipe_wins = false;          // it says how to train, not what the model is
  std::string_view other_name = {};  // another name of the key, in other versions of transformers
};

// Returns the keys of a family of models.
std::vector<ConfigKey> config_keys(const Family& family);

// Returns the families that have keys: "llama", "mistral", ...
std::vector<std::string_view> model_types();

}  // namespace mtrain::interchange
