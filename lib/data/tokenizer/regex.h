// Unicode regular expressions as tokenizer.json files write them (Oniguruma's dialect), run by
// PCRE2's compiler.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace mtrain::data {

class Regex {
 public:
  // Throws UserError that names `where` when the pattern is malformed or uses what would mean
  // something else here.
  Regex(const std::string& pattern, const std::string& where);
  static Regex literal(const std::string& text, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;

  // What a thread needs to match; not shared between threads.
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

  // The first match in text[from, end); `text` must be well-formed UTF-8 and `from` a character's
  // start.
  bool find(std::string_view text, size_t from, Scratch& scratch, size_t& begin, size_t& end) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace mtrain::data
