// Keys of config.json that change nothing in training.
#pragma once
#include <string_view>

namespace mtrain::interchange {

// Whether no family of models computes with the key, whatever its value is.
bool is_harmless_key(std::string_view key);

}  // namespace mtrain::interchange
