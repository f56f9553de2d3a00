// The properties of characters in Unicode that tokenizers need. If versions of Unicode differ,
// these functions follow the tokenizers library, since ids must be equal (unicode_versions.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mtrain::data {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// Returns whether `text`, any bytes, is certainly in this form. It may return false for a text in
// this form if the check would cost as much as normalizing.
bool is_normal_form(std::string_view text, NormalForm form);

// Appends the normal form of `text`, which must be well-formed UTF-8.
void append_normal_form(std::string_view text, NormalForm form, std::string& out);

// Appends the lower case of each character of `text`, which must be well-formed UTF-8.
void append_lowercase(std::string_view text, std::string& out);

bool is_white_space(uint32_t c);

// Return the length in bytes of the white space at the start and at the end of `text`.
size_t leading_white_space(std::string_view text);
size_t trailing_white_space(std::string_view text);

// Returns `text`, which must be well-formed UTF-8. Every character that is too recent for some
// libraries' tables is replaced by an older one that regular expressions treat alike. No offset
// changes. Without such characters it is `text` itself, else a view of `storage`.
std::string_view with_stand_ins(std::string_view text, std::string& storage);

// Patterns in PCRE2's dialect that match one character: \w of Rust's regular expressions (letters,
// marks, digits, connectors), a number of Unicode 17, and punctuation of Unicode 8 or ASCII.
extern const char* const kWordCharacters;
extern const char* const kNumbers;
extern const char* const kPunctuation;

}  // namespace mtrain::data
