// Cuts text into the words within which byte-level BPE merges.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/regex.h"

namespace mtrain::data {

// What becomes of the matches of a pattern and of the gaps between them; names as in
// tokenizer.json.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

class PreTokenizer {
 public:
  // Stages run one after the other, each on the pieces of the one before.
  struct Stage {
    std::unique_ptr<Regex> pattern;  // null: no cuts
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;        // matches and gaps swap roles
    bool prefix_space = false;  // first puts a space before a piece that does not begin with one
  };

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
    std::deque<std::string> prefixed;  // owns the pieces that got a space
  };

  void add(Stage stage);

  // The words of `text` in order. They point into `text` or `scratch` and live until the next call.
  // Malformed UTF-8 makes words of its own, so that every byte not removed by a stage is in exactly
  // one word.
  const std::vector<std::string_view>& split(std::string_view text, Scratch& scratch) const;

 private:
  void cut(const Stage& stage, std::string_view piece, Regex::Scratch& regex,
           Scratch& scratch) const;
  std::string_view with_space(std::string_view piece, Scratch& scratch) const;

  std::vector<Stage> stages_;
  bool prefix_space_ = false;  // of any stage
};

}  // namespace mtrain::data
