// Cuts text into words. BPE merges tokens only within a word.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/regex.h"

namespace mtrain::data {

// How the matches of a pattern and the gaps between them become pieces. The names are those of
// tokenizer.json.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

// The place of the mark of a word's start. The names are those of tokenizer.json.
enum class PrependScheme { always, first, never };

class PreTokenizer {
 public:
  // Stages run one after another, each on the pieces of the stage before it. A stage first changes
  // a piece, and then cuts it.
  struct Stage {
    std::string space;   // replaces every ' ', unless it is empty
    std::string prefix;  // put before a piece that does not begin with it, unless it is empty
    PrependScheme scheme = PrependScheme::always;

    // The stage cuts at the matches of the expression or, if it is null, of the text. It does not
    // cut if the text is empty, too.
    std::unique_ptr<Regex> pattern;
    std::string literal;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;  // matches and gaps swap roles
    // The pattern's classes are those of Unicode 16, whichever version PCRE2 has.
    bool stand_ins = true;
  };

  // The buffers of one thread.
  class Scratch {
   public:
    explicit Scratch(const PreTokenizer& owner);

   private:
    friend class PreTokenizer;
    struct Span {
      size_t begin, end;
      bool match;
    };
    std::vector<Regex::Scratch> regexes;  // one per stage that has a pattern
    std::vector<std::string_view> from, to;
    std::vector<Span> spans;
    std::deque<std::string> changed;  // owns the pieces that a stage has changed
    std::string stand_ins;
  };

  void add(Stage stage);
  bool empty() const { return stages_.empty(); }

  // Returns the words of `text` in order. They point into `text` or `scratch` and live until the
  // next call. Malformed UTF-8 forms words of its own: every byte that no stage removes is in
  // exactly one word. `at_start`: no text precedes `text`.
  const std::vector<std::string_view>& split(std::string_view text, bool at_start,
                                             Scratch& scratch) const;

 private:
  void find_spans(const Stage& stage, std::string_view piece, Regex::Scratch* regex,
                  Scratch& scratch) const;
  void cut(const Stage& stage, std::string_view piece, Regex::Scratch* regex,
           Scratch& scratch) const;
  std::string_view change(const Stage& stage, std::string_view piece, bool prefix,
                          Scratch& scratch) const;

  std::vector<Stage> stages_;
};

}  // namespace mtrain::data
