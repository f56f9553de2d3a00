// UTF-8 for the tokenizers: which bytes are well-formed, and what they encode.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mtrain::data {

// Returns the length in bytes of the character at text[at], or 0 if it is malformed (as surrogates
// and overlong forms are) or incomplete.
size_t utf8_length(std::string_view text, size_t at);

// Returns the code point of the well-formed character at text[at], which has `length` bytes.
uint32_t decode_utf8(std::string_view text, size_t at, size_t length);

// Returns the length of the well-formed character at the end of `text`, or 0 if there is none.
size_t last_character(std::string_view text);

// Returns the end of the longest run from `at` that is completely well-formed if `valid`, else
// completely malformed.
size_t utf8_run_end(std::string_view text, size_t at, bool valid);

// Returns the number of bytes of an incomplete character at the end of `text`.
size_t utf8_unfinished(std::string_view text);

// Appends the code point `c`, which must be a Unicode scalar value, to `out`.
void append_utf8(uint32_t c, std::string& out);

}  // namespace mtrain::data
