#include "data/dataset/sample_text.h"

#include <vector>

#include "base/error.h"
#include "data/tokenizer/decode_stream.h"

namespace mtrain::data {
namespace {

struct Span {
  int64_t first = 0, count = 0;  // tokens of the document
};

Span span_of(const IndexedDataset& tokens, int64_t sample) {
  const TokenIndex& index = tokens.index();
  if (sample < 0 || sample >= index.documents())
    throw UserError(
        fmt::format("there is no sample {}: {} has {}", sample, tokens.name(), index.documents()),
        fmt::format("give --sample 0 to {}", index.documents() - 1));
  const int64_t first = index.document_begin(sample);
  return {first, index.document_begin(sample + 1) - first};
}

// Appends text with codes for control characters.
void append_shown(std::string_view text, std::string& out) {
  for (const char c : text)
    if ((uint8_t(c) < 32 && c != '\n' && c != '\t') || c == 127)
      out += fmt::format("\\x{:02x}", uint8_t(c));
    else
      out += c;
}

}  // namespace

std::string describe_sample(const IndexedDataset& tokens, int64_t sample) {
  const Span span = span_of(tokens, sample);
  int64_t labels = 0;
  for (int64_t t = 0; t < span.count; ++t) labels += tokens.counts(span.first + t);
  return fmt::format("{}: sample {} of {}, {} tokens, {} of them labels", tokens.name(), sample,
                     tokens.index().documents(), span.count, labels);
}

std::string text_of_sample(const IndexedDataset& tokens, int64_t sample, const Tokenizer& tokenizer,
                           const LabelMarks& marks) {
  const Span span = span_of(tokens, sample);
  std::vector<int32_t> ids(static_cast<size_t>(span.count));
  tokens.read(span.first, ids);
  DecodeStream stream(tokenizer);
  std::string out;
  bool marked = false;
  // Text that waits for further tokens belongs to the token that completes it.
  const auto show = [&](const std::string& text, bool label) {
    if (text.empty()) return;
    if (label != marked) out += label ? marks.begin : marks.end;
    marked = label;
    append_shown(text, out);
  };
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool label = tokens.masked() && tokens.counts(span.first + int64_t(i));
    if (ids[i] < 0 || ids[i] >= tokenizer.vocab_size()) {
      show(stream.finish() + fmt::format("<id {}>", ids[i]), label);
      stream = DecodeStream(tokenizer);
      continue;
    }
    if (tokenizer.decode({&ids[i], 1}).empty() && ids[i] == tokenizer.eod())
      show(fmt::format("<id {}>", ids[i]), label);
    else
      show(stream.push(ids[i]), label);
  }
  show(stream.finish(), marked);
  if (marked) out += marks.end;
  return out;
}

}  // namespace mtrain::data
