// Python's functions of texts: characters are code points, texts are UTF-8.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain::data::jinja {

// The characters of a text in order, for range-based loops. Text that is not UTF-8 is cut to bytes.
class Characters {
 public:
  explicit Characters(std::string_view text) : text_(text) {}
  class Iterator {
   public:
    Iterator(std::string_view text, size_t at) : text_(text), at_(at) {}
    std::string_view operator*() const { return text_.substr(at_, length()); }
    Iterator& operator++() {
      at_ += length();
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at_ != other.at_; }
    size_t at() const { return at_; }

   private:
    size_t length() const;
    std::string_view text_;
    size_t at_;
  };
  Iterator begin() const { return {text_, 0}; }
  Iterator end() const { return {text_, text_.size()}; }

 private:
  std::string_view text_;
};

int64_t character_count(std::string_view text);
// Returns the byte at which the character of this number begins; the size if there are fewer.
size_t byte_of_character(std::string_view text, int64_t number);
uint32_t code_point(std::string_view character);

bool is_space(std::string_view character);  // as Python's str.isspace()
bool is_printable(std::string_view character);
bool is_letter(std::string_view character);
bool is_decimal(std::string_view character);  // a digit of a decimal system
int digit_value(std::string_view decimal);    // 0 to 9
bool is_digit(std::string_view character);    // also superscripts and the like
bool is_numeric(std::string_view character);  // also fractions and the like
bool is_upper(std::string_view character);
bool is_lower(std::string_view character);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);  // Python's: a word begins after a character without case
std::string swap_case(std::string_view text);

// Removes white space, or the characters of `set`, from the ends. `set` null: white space.
std::string_view strip(std::string_view text, const std::string* set, bool left, bool right);
// Divides at white space, or at `separator`; at most `most` times if it is not negative, from the
// end if `from_end`.
std::vector<std::string> split(std::string_view text, const std::string* separator, int64_t most,
                               bool from_end);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t most);
std::string escape_html(std::string_view text);
// Appends the escapes that Python and JSON have in common: of the quote, the backslash, and ends of
// lines and tabs. Returns whether the character is one of these.
bool append_escape(std::string_view character, char quote, std::string& out);
// Returns the text between quotes, as Python's repr() writes it.
std::string python_text(std::string_view text);
std::string repeat(std::string_view text, int64_t times);  // throws Fault if it is too long

}  // namespace mtrain::data::jinja
