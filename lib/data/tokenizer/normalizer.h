// Changes text before it is cut into words, as defined by the "normalizer" of a tokenizer.json.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/regex.h"
#include "data/tokenizer/unicode.h"

namespace mtrain::data {

class Normalizer {
 public:
  // Steps run one after the other. The names are those of tokenizer.json.
  struct Step {
    enum class Kind { normal_form, lowercase, strip, prepend, replace };
    Kind kind;
    NormalForm form = NormalForm::nfc;
    bool left = false, right = false;  // the ends from which strip removes white space
    // What replace searches for: matches of the expression or, if it is null, the text.
    std::unique_ptr<Regex> pattern;
    std::string literal;
    std::string content;  // for prepend: put before a text that is not empty; or the replacement
  };

  // The buffers of one thread.
  class Scratch {
   public:
    explicit Scratch(const Normalizer& owner);

   private:
    friend class Normalizer;
    std::vector<Regex::Scratch> regexes;  // one per step that has a pattern
    std::string text[2];
  };

  void add(Step step);
  bool empty() const { return steps_.empty(); }

  // Returns the normalized text: `text` itself if nothing changes, else a view of `scratch` that
  // lives until the next call. Steps that work on characters leave malformed UTF-8 unchanged.
  // Clears `keeps_start` if the first character of `text` is removed.
  std::string_view apply(std::string_view text, Scratch& scratch, bool& keeps_start) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace mtrain::data
