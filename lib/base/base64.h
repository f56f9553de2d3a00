// Base64 (RFC 4648), with padding.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace mtrain {

std::string to_base64(std::string_view bytes);
// Returns nothing for a text that to_base64() cannot have made.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace mtrain
