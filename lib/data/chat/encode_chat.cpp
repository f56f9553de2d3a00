#include "data/chat/encode_chat.h"

#include <algorithm>
#include <string_view>

namespace mtrain::data {
namespace {

// Returns the end in the text of each token, from the tokens' own texts. Tokens that become text
// together have the same end. Returns nothing if the tokens have another text, such as a normal
// form.
std::vector<size_t> ends_of_tokens(std::string_view text, const Tokenizer& tokenizer,
                                   const std::vector<int32_t>& tokens) {
  std::vector<size_t> ends(tokens.size());
  std::string decoded;
  const auto decoder = tokenizer.start_decoding();
  size_t waiting = 0;  // the first token whose text has not arrived
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t before = decoded.size();
    decoder->push(tokens[i], decoded);
    if (text.substr(before, decoded.size() - before) != std::string_view(decoded).substr(before))
      return {};
    if (decoded.size() > before)
      for (; waiting <= i; ++waiting) ends[waiting] = decoded.size();
  }
  decoder->finish(decoded);
  for (; waiting < tokens.size(); ++waiting) ends[waiting] = decoded.size();
  return decoded == text ? ends : std::vector<size_t>();
}

// Returns how many tokens of the full text are those of its first bytes.
size_t tokens_before(std::string_view text, size_t bytes, const Tokenizer& tokenizer,
                     const std::vector<int32_t>& all) {
  std::vector<int32_t> ids;
  tokenizer.encode(text.substr(0, bytes), ids);
  return size_t(std::ranges::mismatch(ids, all).in2 - all.begin());
}

}  // namespace

void encode_chat(const ChatText& chat, const Tokenizer& tokenizer, std::vector<int32_t>& tokens,
                 std::vector<uint8_t>& labels) {
  const std::string_view text = chat.text;
  std::vector<int32_t> all;
  tokenizer.encode(text, all);
  std::vector<uint8_t> marks(all.size(), 0);
  const std::vector<size_t> ends = ends_of_tokens(text, tokenizer, all);
  for (const auto& [begin, end] : chat.spans) {
    if (ends.empty()) {
      const size_t first = tokens_before(text, begin, tokenizer, all);
      const size_t last = tokens_before(text, end, tokenizer, all);
      std::fill(marks.begin() + int64_t(first), marks.begin() + int64_t(std::max(first, last)), 1);
      continue;
    }
    // A token that crosses the end of a span has a byte of it, as transformers counts.
    const auto first = std::ranges::upper_bound(ends, begin);
    const auto last = std::ranges::lower_bound(ends, end);  // it ends at or after the span's end
    for (auto it = first; it != ends.end(); ++it) {
      if (it > last && *it != *last) break;
      marks[size_t(it - ends.begin())] = 1;
    }
  }
  tokens.insert(tokens.end(), all.begin(), all.end());
  labels.insert(labels.end(), marks.begin(), marks.end());
}

}  // namespace mtrain::data
