#include "data/tokenizer/pre_tokenizer.h"

#include "data/tokenizer/unicode.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data {

PreTokenizer::Scratch::Scratch(const PreTokenizer& owner) {
  for (const Stage& stage : owner.stages_)
    if (stage.pattern) regexes.emplace_back(*stage.pattern);
}

void PreTokenizer::add(Stage stage) { stages_.push_back(std::move(stage)); }

std::string_view PreTokenizer::change(const Stage& stage, std::string_view piece, bool prefix,
                                      Scratch& s) const {
  if (piece.empty()) return piece;
  if (!stage.space.empty() && piece.find(' ') != std::string_view::npos) {
    std::string& out = s.changed.emplace_back();
    out.reserve(piece.size() + piece.size() / 2);
    for (char c : piece) {
      if (c == ' ')
        out += stage.space;
      else
        out += c;
    }
    piece = out;
  }
  if (!prefix || stage.prefix.empty() || piece.starts_with(stage.prefix)) return piece;
  return s.changed.emplace_back(stage.prefix).append(piece);
}

void PreTokenizer::find_spans(const Stage& stage, std::string_view piece, Regex::Scratch* regex,
                              Scratch& s) const {
  auto& spans = s.spans;
  spans.clear();
  size_t done = 0;
  const auto match = [&](size_t begin, size_t end) {
    if (begin > done) spans.push_back({done, begin, stage.invert});
    spans.push_back({begin, end, !stage.invert});
    done = end;
  };
  if (stage.pattern) {
    const auto text = stage.stand_ins ? with_stand_ins(piece, s.stand_ins) : piece;
    stage.pattern->for_each(text, *regex, match);
  } else {
    for (size_t at; (at = piece.find(stage.literal, done)) != std::string_view::npos;)
      match(at, at + stage.literal.size());
  }
  if (done < piece.size()) spans.push_back({done, piece.size(), stage.invert});
}

void PreTokenizer::cut(const Stage& stage, std::string_view piece, Regex::Scratch* regex,
                       Scratch& s) const {
  find_spans(stage, piece, regex, s);
  const auto& spans = s.spans;
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

const std::vector<std::string_view>& PreTokenizer::split(std::string_view text, bool at_start,
                                                         Scratch& s) const {
  s.changed.clear();
  std::vector<std::string_view> words;
  words.swap(s.from);
  words.clear();
  // The text is split into runs of valid and of invalid UTF-8. The first stage puts its prefix only
  // before the first run, since the text is one piece for it. Later stages also put theirs before
  // the pieces of other valid runs.
  bool first_run = true;
  for (size_t at = 0; at < text.size();) {
    const bool valid = utf8_length(text, at) > 0;
    const size_t run_end = utf8_run_end(text, at, valid);
    const size_t first = words.size();
    words.push_back(text.substr(at, run_end - at));
    at = run_end;
    size_t regex = 0;
    bool keeps_start = at_start && first_run;  // whether words[first] begins the text
    for (const Stage& stage : stages_) {
      for (size_t i = first; i < words.size(); ++i) {
        const bool whole = first_run || (valid && &stage != &stages_.front());
        const bool prefix = stage.scheme == PrependScheme::always ||
                            (stage.scheme == PrependScheme::first && keeps_start && i == first);
        words[i] = change(stage, words[i], whole && prefix, s);
      }
      if (!stage.pattern && stage.literal.empty()) continue;
      Regex::Scratch* scratch = stage.pattern ? &s.regexes[regex++] : nullptr;
      if (!valid) continue;
      s.to.clear();
      for (size_t i = first; i < words.size(); ++i) {
        cut(stage, words[i], scratch, s);
        if (i == first && !(s.to.size() && s.to[0].data() == words[i].data())) keeps_start = false;
      }
      words.resize(first);
      words.insert(words.end(), s.to.begin(), s.to.end());
    }
    first_run = false;
  }
  s.from.swap(words);
  return s.from;
}

}  // namespace mtrain::data
