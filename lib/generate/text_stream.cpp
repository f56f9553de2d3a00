#include "generate/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace mtrain::generate {

namespace {

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
    : characters_(tokenizer, prompt), stop_(std::move(stop)) {}

std::string TextStream::push(int32_t id) {
  return stopped_ ? "" : before_stop(characters_.push(id));
}

std::string TextStream::finish() {
  if (stopped_) return "";
  std::string text = before_stop(characters_.finish());
  return text + std::exchange(held_, "");
}

std::string TextStream::before_stop(std::string text) {
  text.insert(0, held_);
  size_t end = std::string::npos;
  for (const std::string& s : stop_) end = std::min(end, text.find(s));
  stopped_ = end != std::string::npos;
  const size_t shown = stopped_ ? end : text.size() - begun_stop(text, stop_);
  held_ = stopped_ ? "" : text.substr(shown);
  text.resize(shown);
  return text;
}

}  // namespace mtrain::generate
