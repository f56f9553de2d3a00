#include "data/tokenizer/bpe_tokenizer.h"

#include "base/error.h"

namespace mtrain::data {
namespace {

// Calls gap(begin, end) for the text between added tokens and token(id) for each, in order.
template <class Gap, class Token>
void for_each_part(const AddedTokens& added, std::string_view text, Gap&& gap, Token&& token) {
  AddedTokens::Cursor cursor;
  AddedTokens::Match match{};
  size_t done = 0;
  while (added.next(text, cursor, match)) {
    if (done < match.begin) gap(done, match.begin);
    token(match.id);
    done = match.end;
  }
  if (done < text.size()) gap(done, text.size());
}

}  // namespace

struct BpeTokenizer::Scratch {
  explicit Scratch(const Parts& parts) : normalizer(parts.normalizer), words(parts.pre_tokenizer) {}
  Normalizer::Scratch normalizer;
  PreTokenizer::Scratch words;
  BpeModel::Scratch bpe;
};

BpeTokenizer::BpeTokenizer(Parts parts) : parts_(std::move(parts)) {}
BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::encode(std::string_view text, std::vector<int32_t>& out) const {
  std::unique_ptr<Scratch> scratch;
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      scratch = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!scratch) scratch = std::make_unique<Scratch>(parts_);
  for_each_part(
      parts_.raw, text,
      [&](size_t begin, size_t end) {
        encode_raw(text.substr(begin, end - begin), begin == 0, *scratch, out);
      },
      [&](int32_t id) { out.push_back(id); });
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(scratch));
}

void BpeTokenizer::encode_raw(std::string_view text, bool at_start, Scratch& s,
                              std::vector<int32_t>& out) const {
  bool keeps_start = true;
  text = parts_.normalizer.apply(text, s.normalizer, keeps_start);
  for_each_part(
      parts_.normalized, text,
      [&](size_t begin, size_t end) {
        encode_normalized(text.substr(begin, end - begin), at_start && keeps_start && begin == 0, s,
                          out);
      },
      [&](int32_t id) { out.push_back(id); });
}

void BpeTokenizer::encode_normalized(std::string_view text, bool at_start, Scratch& s,
                                     std::vector<int32_t>& out) const {
  if (parts_.pre_tokenizer.empty()) return parts_.model->encode(text, s.bpe, out);
  for (std::string_view word : parts_.pre_tokenizer.split(text, at_start, s.words))
    parts_.model->encode(word, s.bpe, out);
}

class BpeTokenizer::Decoding final : public TokenDecoder {
 public:
  explicit Decoding(const BpeTokenizer& owner) : owner_(owner), stream_(owner.parts_.decoder) {}
  void push(int32_t id, std::string& out) override {
    if (id < 0 || id >= owner_.vocab_size())
      throw UserError(fmt::format("token id {} is outside the vocabulary of {} ({})", id,
                                  owner_.vocab_size(), owner_.name()));
    const std::string& token = owner_.parts_.tokens[size_t(id)];
    if (!token.empty()) stream_.push(token, out);
  }
  void finish(std::string& out) override { stream_.finish(out); }

 private:
  const BpeTokenizer& owner_;
  Decoder::Stream stream_;
};

std::unique_ptr<TokenDecoder> BpeTokenizer::start_decoding() const {
  return std::make_unique<Decoding>(*this);
}

// In the pre-tokenizers of GPT-2, Llama 3 and Qwen a word always ends after a line feed between a
// visible character and a letter or digit, and before a space between two letters. Each side of
// such a place gives the same words without the other side, since no alternative of the patterns
// looks across it, nor does normal form C.
size_t BpeTokenizer::safe_cut(std::string_view text) const {
  if (!parts_.cuts_at_words || text.size() < 3) return 0;
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto visible = [](char c) { return c > ' ' && c < 127; };
  for (size_t cut = text.size() - 1; cut >= 2; --cut)
    if (text[cut - 1] == '\n' && visible(text[cut - 2]) && (letter(text[cut]) || digit(text[cut])))
      return cut;
  for (size_t cut = text.size() - 2; cut >= 1; --cut)
    if (text[cut] == ' ' && letter(text[cut - 1]) && letter(text[cut + 1])) return cut;
  return 0;
}

}  // namespace mtrain::data
