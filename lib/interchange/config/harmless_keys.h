// Keys of config.json that do not affect training.
#pragma once
#include <string_view>

namespace mtrain::interchange {

// Whether no family of models computes with the key, whatever its value.
bool is_harmless_key(std::string_view key);

}  // namespace mtrain::interchange
