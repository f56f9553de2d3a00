#include "data/tokenizer/normalizer.h"

#include "data/tokenizer/utf8.h"

namespace mtrain::data {
namespace {

using NormalizerKind = Normalizer::Step::Kind;

// Calls f(run), which appends to `out`, for each well-formed run of `text`. Appends malformed runs
// unchanged.
template <class F>
void for_each_run(std::string_view text, std::string& out, F&& f) {
  for (size_t at = 0; at < text.size();) {
    const bool valid = utf8_length(text, at) > 0;
    const size_t end = utf8_run_end(text, at, valid);
    const std::string_view run = text.substr(at, end - at);
    if (valid)
      f(run);
    else
      out += run;
    at = end;
  }
}

void normalize_literal(std::string_view text, const Normalizer::Step& step, std::string& out,
                       bool& keeps_start) {
  size_t done = 0;
  for (size_t at; (at = text.find(step.literal, done)) != std::string_view::npos;) {
    if (at == 0 && step.content.empty()) keeps_start = false;
    out += text.substr(done, at - done);
    out += step.content;
    done = at + step.literal.size();
  }
  out += text.substr(done);
}

void replace_matches(std::string_view text, const Normalizer::Step& step, Regex::Scratch& regex,
                     std::string& out, bool& keeps_start) {
  for_each_run(text, out, [&](std::string_view run) {
    size_t done = 0;
    step.pattern->for_each(run, regex, [&](size_t begin, size_t end) {
      if (run.data() == text.data() && begin == 0 && end > 0 && step.content.empty())
        keeps_start = false;
      out += run.substr(done, begin - done);
      out += step.content;
      done = end;
    });
    out += run.substr(done);
  });
}

std::string_view strip(std::string_view text, const Normalizer::Step& step, bool& keeps_start) {
  if (step.left) {
    const size_t spaces = leading_white_space(text);
    if (spaces > 0) keeps_start = false;
    text.remove_prefix(spaces);
  }
  if (step.right) text.remove_suffix(trailing_white_space(text));
  return text;
}

}  // namespace

Normalizer::Scratch::Scratch(const Normalizer& owner) {
  for (const Step& step : owner.steps_)
    if (step.pattern) regexes.emplace_back(*step.pattern);
}

void Normalizer::add(Step step) { steps_.push_back(std::move(step)); }

std::string_view Normalizer::apply(std::string_view text, Scratch& s, bool& keeps_start) const {
  size_t regex = 0, target = 0;
  for (const Step& step : steps_) {
    if (step.kind == NormalizerKind::strip) {
      text = strip(text, step, keeps_start);
      continue;
    }
    if (step.kind == NormalizerKind::normal_form && is_normal_form(text, step.form)) continue;
    std::string& out = s.text[target];
    target = 1 - target;
    out.clear();
    switch (step.kind) {
      case NormalizerKind::normal_form:
        for_each_run(text, out,
                     [&](std::string_view run) { append_normal_form(run, step.form, out); });
        break;
      case NormalizerKind::lowercase:
        for_each_run(text, out, [&](std::string_view run) { append_lowercase(run, out); });
        break;
      case NormalizerKind::prepend:
        if (!text.empty()) out += step.content;
        out += text;
        break;
      case NormalizerKind::replace:
        if (step.pattern)
          replace_matches(text, step, s.regexes[regex++], out, keeps_start);
        else
          normalize_literal(text, step, out, keeps_start);
        break;
      case NormalizerKind::strip: break;
    }
    text = out;
  }
  return text;
}

}  // namespace mtrain::data
