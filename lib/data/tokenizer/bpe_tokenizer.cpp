#include "data/tokenizer/bpe_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data {

void AddedTokens::add(const std::string& content, int32_t id) {
  if (content.empty()) return;
  starts_[uint8_t(content[0])] = 1;
  const auto shorter = [&](const Token& t) { return t.content.size() < content.size(); };
  tokens_.insert(std::find_if(tokens_.begin(), tokens_.end(), shorter), {content, id});
}

bool AddedTokens::find(std::string_view text, size_t from, size_t& begin, size_t& end,
                       int32_t& id) const {
  if (tokens_.empty()) return false;
  for (size_t at = from; at < text.size(); ++at) {
    if (!starts_[uint8_t(text[at])]) continue;
    const std::string_view rest = text.substr(at);
    for (const Token& token : tokens_) {
      if (!rest.starts_with(token.content)) continue;
      begin = at;
      end = at + token.content.size();
      id = token.id;
      return true;
    }
  }
  return false;
}

struct BpeTokenizer::Scratch {
  explicit Scratch(const Parts& parts) : words(parts.pre_tokenizer) {}
  PreTokenizer::Scratch words;
  BpeModel::Scratch bpe;
  std::string normalized, composed;
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
  size_t at = 0, begin = 0, end = 0;
  int32_t id = 0;
  while (parts_.raw.find(text, at, begin, end, id)) {
    encode_raw(text.substr(at, begin - at), *scratch, out);
    out.push_back(id);
    at = end;
  }
  encode_raw(text.substr(at), *scratch, out);
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(scratch));
}

void BpeTokenizer::encode_raw(std::string_view text, Scratch& s, std::vector<int32_t>& out) const {
  if (parts_.nfc) {
    s.normalized.clear();
    bool changed = false;
    for (size_t at = 0; at < text.size();) {
      const bool valid = utf8_length(text, at) > 0;
      const size_t end = utf8_run_end(text, at, valid);
      const std::string_view run = text.substr(at, end - at);
      const std::string_view composed = valid ? to_nfc(run, s.composed) : run;
      if (composed.data() == text.data() && composed.size() == text.size())
        break;  // all of the text is in normal form
      s.normalized += composed;
      changed = true;
      at = end;
    }
    if (changed) text = s.normalized;
  }
  size_t at = 0, begin = 0, end = 0;
  int32_t id = 0;
  while (parts_.normalized.find(text, at, begin, end, id)) {
    encode_normalized(text.substr(at, begin - at), s, out);
    out.push_back(id);
    at = end;
  }
  encode_normalized(text.substr(at), s, out);
}

void BpeTokenizer::encode_normalized(std::string_view text, Scratch& s,
                                     std::vector<int32_t>& out) const {
  for (std::string_view word : parts_.pre_tokenizer.split(text, s.words))
    parts_.model->encode(word, s.bpe, out);
}

std::unique_ptr<TokenDecoder> BpeTokenizer::start_decoding() const {
  class Decoder final : public TokenDecoder {
   public:
    explicit Decoder(const BpeTokenizer& owner) : owner_(owner) {}
    void push(int32_t id, std::string& out) override {
      if (id < 0 || id >= owner_.vocab_size())
        throw UserError(fmt::format("token id {} is outside the vocabulary of {} ({})", id,
                                    owner_.vocab_size(), owner_.name()));
      out += owner_.parts_.bytes[size_t(id)];
    }
    void finish(std::string&) override {}

   private:
    const BpeTokenizer& owner_;
  };
  return std::make_unique<Decoder>(*this);
}

// In the pre-tokenizers of GPT-2, Llama 3 and Qwen a word always ends after a line feed that stands
// between a visible character and a letter or digit, and before a space between two letters. Each
// side of such a place gives the same words without the other side, since no alternative of the
// patterns looks across it, and neither does normal form C.
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
