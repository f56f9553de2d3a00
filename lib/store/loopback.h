// Addresses that only the same host reaches.
#pragma once
#include <string_view>

namespace mtrain::store {

inline bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address.starts_with("::ffff:127.") || address == "::1";
}

}  // namespace mtrain::store
