// UTF-8 as the tokenizers need it: which bytes are text, and its composed normal form.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mtrain::data {

// Bytes of the well-formed character at text[at] (no surrogates, no overlong forms); 0 when it is
// malformed or cut off.
size_t utf8_length(std::string_view text, size_t at);

// End of the longest run from `at` that is wholly well-formed (`valid`) or wholly malformed.
size_t utf8_run_end(std::string_view text, size_t at, bool valid);

// The first code point of `c` as UTF-8; `c` must be a Unicode scalar value.
void append_utf8(uint32_t c, std::string& out);

// Normal form C of well-formed UTF-8. Returns `text` itself when it needs no change, else a view of
// `storage`.
std::string_view to_nfc(std::string_view text, std::string& storage);

}  // namespace mtrain::data
