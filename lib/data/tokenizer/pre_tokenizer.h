// Cuts text into words. Byte-level BPE merges tokens only within a word.
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

class PreTokenizer {
 public:
  // Stages run one after the other, each on the pieces that the stage before has made.
  struct Stage {
    std::unique_ptr<Regex> pattern;  // null: the stage makes no cuts
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;        // matches and gaps swap roles
    bool prefix_space = false;  // first puts a space before each piece that does not begin with one
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
    std::deque<std::string> prefixed;  // owns the pieces that were given a space
  };

  void add(Stage stage);

  // Returns the words of `text` in order. They point into `text` or `scratch` and live until the
  // next call. Malformed UTF-8 makes words of its own, so that every byte that no stage removes is
  // in exactly one word.
  const std::vector<std::string_view>& split(std::string_view text, Scratch& scratch) const;

 private:
  void cut(const Stage& stage, std::string_view piece, Regex::Scratch& regex,
           Scratch& scratch) const;
  std::string_view with_space(std::string_view piece, Scratch& scratch) const;

  std::vector<Stage> stages_;
  bool prefix_space_ = false;  // whether any stage has it
};

}  // namespace mtrain::data
