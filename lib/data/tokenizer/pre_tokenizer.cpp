#include "data/tokenizer/pre_tokenizer.h"

#include "data/tokenizer/utf8.h"

namespace mtrain::data {

PreTokenizer::Scratch::Scratch(const PreTokenizer& owner) {
  for (const Stage& stage : owner.stages_)
    if (stage.pattern) regexes.emplace_back(*stage.pattern);
}

void PreTokenizer::add(Stage stage) {
  prefix_space_ |= stage.prefix_space;
  stages_.push_back(std::move(stage));
}

std::string_view PreTokenizer::with_space(std::string_view piece, Scratch& s) const {
  if (piece.empty() || piece.front() == ' ') return piece;
  return s.prefixed.emplace_back(1, ' ').append(piece);
}

void PreTokenizer::cut(const Stage& stage, std::string_view piece, Regex::Scratch& regex,
                       Scratch& s) const {
  auto& spans = s.spans;
  spans.clear();
  size_t done = 0, from = 0, begin = 0, end = 0;
  while (from <= piece.size() && stage.pattern->find(piece, from, regex, begin, end)) {
    if (begin > done) spans.push_back({done, begin, stage.invert});
    spans.push_back({begin, end, !stage.invert});
    done = end;
    from = end;
    if (begin == end) {  // an empty match cuts, and the search goes on a character later
      if (end == piece.size()) break;
      from += utf8_length(piece, end);
    }
  }
  if (done < piece.size()) spans.push_back({done, piece.size(), stage.invert});

  const auto emit = [&](size_t b, size_t e) {
    if (e > b) s.to.push_back(piece.substr(b, e - b));
  };
  const size_t n = spans.size();
  // Spans i to j - 1 form one piece. The behaviours differ only in which spans these are.
  switch (stage.behavior) {
    case SplitBehavior::isolated:
      for (const auto& span : spans) emit(span.begin, span.end);
      break;
    case SplitBehavior::removed:
      for (const auto& span : spans)
        if (!span.match) emit(span.begin, span.end);
      break;
    case SplitBehavior::contiguous:
      for (size_t i = 0, j; i < n; i = j) {
        for (j = i + 1; j < n && spans[j].match == spans[i].match; ++j) {
        }
        emit(spans[i].begin, spans[j - 1].end);
      }
      break;
    case SplitBehavior::merged_with_previous:
      for (size_t i = 0, j; i < n; i = j) {
        j = i + 1;
        if (j < n && spans[j].match && !spans[i].match) ++j;
        emit(spans[i].begin, spans[j - 1].end);
      }
      break;
    case SplitBehavior::merged_with_next:
      for (size_t i = 0, j; i < n; i = j) {
        j = i + 1;
        if (j < n && spans[i].match && !spans[j].match) ++j;
        emit(spans[i].begin, spans[j - 1].end);
      }
      break;
  }
}

const std::vector<std::string_view>& PreTokenizer::split(std::string_view text, Scratch& s) const {
  s.prefixed.clear();
  s.to.clear();
  // The space goes before the first character of the text, whether it is well-formed or not.
  bool prefix = prefix_space_;
  std::vector<std::string_view> words;
  words.swap(s.from);
  words.clear();
  for (size_t at = 0; at < text.size();) {
    const bool valid = utf8_length(text, at) > 0;
    const size_t run_end = utf8_run_end(text, at, valid);
    const std::string_view run = text.substr(at, run_end - at);
    at = run_end;
    if (!valid) {
      words.push_back(prefix ? with_space(run, s) : run);
      prefix = false;
      continue;
    }
    const size_t first = words.size();
    words.push_back(run);
    size_t regex = 0;
    for (const Stage& stage : stages_) {
      if (stage.prefix_space && (prefix || &stage != &stages_.front()))
        for (size_t i = first; i < words.size(); ++i) words[i] = with_space(words[i], s);
      if (!stage.pattern) continue;
      s.to.clear();
      for (size_t i = first; i < words.size(); ++i) cut(stage, words[i], s.regexes[regex], s);
      ++regex;
      words.resize(first);
      words.insert(words.end(), s.to.begin(), s.to.end());
    }
    prefix = false;
  }
  s.from.swap(words);
  return s.from;
}

}  // namespace mtrain::data
