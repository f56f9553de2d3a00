#include "data/tokenizer/decoder.h"

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data {
namespace {

using DecoderKind = Decoder::Step::Kind;

void decode_literal(std::string_view text, const Decoder::Step& step, std::string_view content,
                    std::string& out) {
  size_t done = 0;
  for (size_t at; (at = text.find(step.literal, done)) != std::string_view::npos;) {
    out += text.substr(done, at - done);
    out += content;
    done = at + step.literal.size();
  }
  out += text.substr(done);
}

// Returns the byte that a token like "<0xE4>" stands for, or -1.
int byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  const int high = digit(token[3]), low = digit(token[4]);
  return high < 0 || low < 0 ? -1 : 16 * high + low;
}

}  // namespace

void Decoder::add(Step step, const std::string& where) {
  const bool fused = !fused_.empty() && (fused_.back() || steps_.back().kind == DecoderKind::fuse);
  if (fused && step.kind != DecoderKind::replace && step.kind != DecoderKind::strip &&
      step.kind != DecoderKind::fuse)
    throw UserError(fmt::format("{}: this decoder after Fuse is not supported", where));
  fused_.push_back(fused);
  steps_.push_back(std::move(step));
}

Decoder::Stream::Stream(const Decoder& owner) : owner_(owner), states_(owner.steps_.size()) {
  for (const Step& step : owner.steps_)
    regexes_.push_back(step.pattern ? std::make_unique<Regex::Scratch>(*step.pattern) : nullptr);
}

void Decoder::Stream::push(std::string_view token, std::string& out) { feed(0, token, out); }

void Decoder::Stream::finish(std::string& out) {
  for (size_t step = 0; step < states_.size(); ++step) close(step, out);
}

void Decoder::Stream::feed(size_t index, std::string_view token, std::string& out) {
  if (index == owner_.steps_.size()) {
    out += token;
    return;
  }
  const Step& step = owner_.steps_[index];
  State& state = states_[index];
  const bool first = std::exchange(state.first, false);
  if (owner_.fused_[index] && step.kind == DecoderKind::replace)
    return replace_fused(index, token, out);
  if (owner_.fused_[index] && step.kind == DecoderKind::strip)
    return strip_fused(index, token, out);
  std::string text;
  switch (step.kind) {
    case DecoderKind::fuse: return feed(index + 1, token, out);
    case DecoderKind::replace:
      if (step.pattern) {
        size_t done = 0;
        const bool valid = utf8_run_end(token, 0, true) == token.size();
        if (valid)
          step.pattern->for_each(token, *regexes_[index], [&](size_t begin, size_t end) {
            text += token.substr(done, begin - done);
            text += step.content;
            done = end;
          });
        text += token.substr(done);
      } else {
        decode_literal(token, step, step.content, text);
      }
      break;
    case DecoderKind::byte_fallback: {
      const int byte = byte_of(token);
      if (byte >= 0) {
        state.held += char(byte);
        // Bytes may be passed on character by character only if the next step fuses them, or is
        // none.
        const bool fuses =
            index + 1 == owner_.steps_.size() || owner_.steps_[index + 1].kind == DecoderKind::fuse;
        if (fuses && utf8_unfinished(state.held) == 0) flush_bytes(index, out);
        return;
      }
      flush_bytes(index, out);
      text = token;
      break;
    }
    case DecoderKind::strip: {
      size_t begin = 0, end = token.size();
      const auto& c = step.content;
      for (size_t i = 0; i < step.start && token.substr(begin, end - begin).starts_with(c); ++i)
        begin += c.size();
      for (size_t i = 0; i < step.stop && token.substr(begin, end - begin).ends_with(c); ++i)
        end -= c.size();
      text = token.substr(begin, end - begin);
      break;
    }
    case DecoderKind::metaspace:
      decode_literal(token, step, first && step.drop_first ? "" : " ", text);
      break;
    case DecoderKind::join:
      if (!first) text = step.content;
      text += token;
      break;
  }
  feed(index + 1, text, out);
}

void Decoder::Stream::flush_bytes(size_t index, std::string& out) {
  if (states_[index].held.empty()) return;
  feed(index + 1, std::exchange(states_[index].held, {}), out);
}

// Replaces in a token that may continue. The end of the text is held back if it may be the start of
// a match. For an expression, all text is held back, since a match can depend on everything that
// follows.
void Decoder::Stream::replace_fused(size_t index, std::string_view token, std::string& out) {
  const Step& step = owner_.steps_[index];
  std::string& held = states_[index].held;
  held += token;
  if (step.pattern) return;
  std::string text;
  size_t done = 0;
  for (size_t at; (at = held.find(step.literal, done)) != std::string::npos;) {
    text.append(held, done, at - done);
    text += step.content;
    done = at + step.literal.size();
  }
  size_t keep = std::min(held.size() - done, step.literal.size() - 1);
  while (keep > 0 && !step.literal.starts_with(std::string_view(held).substr(held.size() - keep)))
    --keep;
  text.append(held, done, held.size() - keep - done);
  held.erase(0, held.size() - keep);
  feed(index + 1, text, out);
}

// Strips a token that may continue: characters at its end that may have to be stripped are held
// back.
void Decoder::Stream::strip_fused(size_t index, std::string_view token, std::string& out) {
  const Step& step = owner_.steps_[index];
  State& state = states_[index];
  while (state.stripped < step.start && token.starts_with(step.content)) {
    token.remove_prefix(step.content.size());
    ++state.stripped;
  }
  if (!token.empty()) state.stripped = step.start;
  std::string& held = state.held;
  held += token;
  std::string_view rest = held;
  for (size_t i = 0; i < step.stop && rest.ends_with(step.content); ++i)
    rest.remove_suffix(step.content.size());
  const std::string text(rest);
  held.erase(0, text.size());
  feed(index + 1, text, out);
}

void Decoder::Stream::close(size_t index, std::string& out) {
  const Step& step = owner_.steps_[index];
  State& state = states_[index];
  if (step.kind == DecoderKind::byte_fallback) return flush_bytes(index, out);
  if (step.kind != DecoderKind::replace || !owner_.fused_[index]) return;
  std::string text;
  if (step.pattern && utf8_run_end(state.held, 0, true) == state.held.size()) {
    size_t done = 0;
    step.pattern->for_each(state.held, *regexes_[index], [&](size_t begin, size_t end) {
      text.append(state.held, done, begin - done);
      text += step.content;
      done = end;
    });
    text.append(state.held, done);
  } else {
    text = state.held;
  }
  feed(index + 1, text, out);
}

}  // namespace mtrain::data
