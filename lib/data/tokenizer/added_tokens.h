// Texts that are always one token, such as "<|endoftext|>".
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/regex.h"

namespace mtrain::data {

struct AddedToken {
  std::string content;  // the text to search for
  int32_t id = 0;
  bool single_word = false;                      // matches only if no word character touches it
  bool strip_left = false, strip_right = false;  // a match includes the white space on that side
};

// The search for them comes before the text is cut into words. The leftmost match comes first; of
// those that begin at the same place, the longest.
class AddedTokens {
 public:
  void add(AddedToken token);
  bool empty() const { return tokens_.empty(); }

  struct Match {
    size_t begin, end;
    int32_t id;
  };
  struct Cursor {
    size_t from = 0;  // the search continues here
    size_t done = 0;  // the end of the last match, including its white space
  };
  // Returns whether `text` has another match, and sets `match` to it. The white space of a match
  // may contain further matches; these then overlap it.
  bool next(std::string_view text, Cursor& cursor, Match& match) const;

 private:
  const AddedToken* token_at(std::string_view text, size_t at) const;
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;  // the longest first
  // By the first byte: the tokens that begin with it, the longest first.
  std::array<std::vector<uint32_t>, 256> by_first_byte_;
  std::shared_ptr<const Regex> word_;  // matches a word character; set if any token needs it
};

}  // namespace mtrain::data
