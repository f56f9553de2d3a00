// The secret of a job, by which its ranks authenticate each other. It is never printed.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mtrain {

struct Token {
  static constexpr size_t kBytes = 32;
  std::array<uint8_t, kBytes> bytes{};

  static Token random();  // from the kernel; throws RunError if it returns none
  // Reads hex(): 64 digits. Returns nothing for any other text.
  static std::optional<Token> parse(std::string_view hex);
  std::string hex() const;
  bool operator==(const Token&) const = default;
};

}  // namespace mtrain
