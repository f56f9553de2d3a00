// Unicode regular expressions in the dialect of tokenizer.json files (Oniguruma's), compiled and
// matched by PCRE2.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/utf8.h"

namespace mtrain::data {

class Regex {
 public:
  // Throws UserError, which names `where`, if the pattern is malformed or uses a construct that
  // PCRE2 reads differently from Oniguruma.
  Regex(const std::string& pattern, const std::string& where);
  // Compiles a pattern of mtrain's own, in PCRE2's dialect.
  static Regex native(const std::string& pattern);
  ~Regex();
  Regex(Regex&&) noexcept;

  // The buffers that one thread needs for matching. Threads must not share one.
  class Scratch {
   public:
    explicit Scratch(const Regex& regex);
    ~Scratch();
    Scratch(Scratch&&) noexcept;

   private:
    friend class Regex;
    struct State;
    std::unique_ptr<State> state_;
  };

  // Returns whether `text` has a match at or after `from`, and sets [begin, end) to the first one.
  // `text` must be well-formed UTF-8, and `from` the start of a character.
  bool find(std::string_view text, size_t from, Scratch& scratch, size_t& begin, size_t& end) const;

  // Calls f(begin, end) for each match from left to right. Matches do not overlap, and an empty
  // match directly after another match is skipped, as in Oniguruma's search.
  template <class F>
  void for_each(std::string_view text, Scratch& scratch, F&& f) const {
    size_t from = 0, begin = 0, end = 0, last = std::string_view::npos;
    while (from <= text.size() && find(text, from, scratch, begin, end)) {
      if (begin == end && end == last) {
        if (from == text.size()) break;
        from += utf8_length(text, from);
        continue;
      }
      f(begin, end);
      from = last = end;
    }
  }

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace mtrain::data
