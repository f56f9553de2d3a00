#include "generate/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace mtrain::generate {

namespace {

constexpr size_t kRecent = 8;  // tokens before a new one that its text may depend on

// Returns how many bytes at the end begin a character of UTF-8 that is not complete.
size_t incomplete_bytes(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const auto byte = static_cast<unsigned char>(text[text.size() - n]);
    if ((byte & 0xc0) == 0x80) continue;  // not the first byte of a character
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > n ? n : 0;
  }
  return 0;
}

// Returns how many bytes at the end are the beginning of a stop string.
size_t begun_stop(std::string_view text, const std::vector<std::string>& stop) {
  size_t most = 0;
  for (const std::string_view s : stop)
    for (size_t n = std::min(s.size(), text.size()); n > most; --n)
      if (text.ends_with(s.substr(0, n))) most = n;
  return most;
}

}  // namespace

TextStream::TextStream(const data::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                       std::vector<std::string> stop)
    : tokenizer_(tokenizer), stop_(std::move(stop)) {
  const auto last = prompt.last(std::min(kRecent, prompt.size()));
  recent_.assign(last.begin(), last.end());
  written_ = tokenizer_.decode(recent_);
}

std::string TextStream::push(int32_t id) {
  if (stopped_) return "";
  recent_.push_back(id);
  const std::string now = tokenizer_.decode(recent_);
  // A decoder may still change the text of a token that is not complete; it then waits for the
  // next one.
  if (!now.starts_with(written_)) return "";
  held_ += now.substr(written_.size());
  written_ = now;
  if (recent_.size() > 2 * kRecent) {
    recent_.erase(recent_.begin(), recent_.end() - kRecent);
    written_ = tokenizer_.decode(recent_);
  }
  size_t end = std::string::npos;
  for (const std::string& s : stop_) end = std::min(end, held_.find(s));
  stopped_ = end != std::string::npos;
  const size_t shown =
      stopped_ ? end : held_.size() - std::max(incomplete_bytes(held_), begun_stop(held_, stop_));
  std::string text = held_.substr(0, shown);
  held_ = stopped_ ? "" : held_.substr(shown);
  return text;
}

std::string TextStream::finish() { return std::exchange(held_, ""); }

}  // namespace mtrain::generate
