// Unicode regular expressions in the dialect of tokenizer.json files (Oniguruma's), compiled and
// matched by PCRE2.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace mtrain::data {

class Regex {
 public:
  // Throws UserError, which names `where`, if the pattern is malformed or uses a construct that
  // PCRE2 reads differently from Oniguruma.
  Regex(const std::string& pattern, const std::string& where);
  // Makes an expression that matches `text` character for character.
  static Regex literal(const std::string& text, const std::string& where);
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

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace mtrain::data
