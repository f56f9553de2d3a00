// Turns tokens into text, as defined by the "decoder" of a tokenizer.json.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/regex.h"

namespace mtrain::data {

class Decoder {
 public:
  // Steps run one after the other over the list of tokens. The names are those of tokenizer.json.
  struct Step {
    enum class Kind {
      replace,        // `content` for every match in a token
      byte_fallback,  // tokens like "<0xE4>" become bytes
      fuse,           // all tokens become one
      strip,          // removes `content` up to `start` and `stop` times from a token's ends
      metaspace,      // a space for every `literal`, or nothing in the first token if `drop_first`
      join,           // puts `content` between tokens
    };
    Kind kind;
    std::shared_ptr<const Regex> pattern;  // replace: used instead of `literal` if it is set
    std::string literal, content;
    size_t start = 0, stop = 0;
    bool drop_first = false;
  };

  // Throws UserError, which names `where`, for an order of steps that is not supported.
  void add(Step step, const std::string& where);

  // Decodes one sequence. `owner` must outlive it.
  class Stream {
   public:
    explicit Stream(const Decoder& owner);
    // Appends the text that becomes final with `token` to `out`.
    void push(std::string_view token, std::string& out);
    void finish(std::string& out);

   private:
    struct State {
      bool first = true;    // no token has come yet
      size_t stripped = 0;  // of the start of the fused token
      std::string held;     // text of the fused token, or bytes, that may still change
    };
    void feed(size_t step, std::string_view token, std::string& out);
    void close(size_t step, std::string& out);
    void replace(const Step& step, std::string_view text, std::string& out);
    void replace_fused(size_t step, std::string_view token, std::string& out);
    void strip_fused(size_t step, std::string_view token, std::string& out);
    void flush_bytes(size_t step, std::string& out);

    const Decoder& owner_;
    std::vector<State> states_;
    std::vector<std::unique_ptr<Regex::Scratch>> regexes_;
  };

 private:
  std::vector<Step> steps_;
  std::vector<bool> fused_;  // by step: whether its inputs are parts of a single token
};

}  // namespace mtrain::data
