// Byte-level BPE with added tokens. tokenizer_json.cpp makes its parts.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer.h"

namespace mtrain::data {

// Texts that are always one token, such as "<|endoftext|>". They are looked for before the text is
// cut into words; the leftmost is found first, and the longest of those that begin at one place.
class AddedTokens {
 public:
  void add(const std::string& content, int32_t id);
  // Returns whether `text` has an added token at or after `from`, and sets [begin, end) and `id` to
  // the first one.
  bool find(std::string_view text, size_t from, size_t& begin, size_t& end, int32_t& id) const;
  bool empty() const { return tokens_.empty(); }

 private:
  struct Token {
    std::string content;
    int32_t id;
  };
  std::vector<Token> tokens_;                                // the longest first
  std::vector<uint8_t> starts_ = std::vector<uint8_t>(256);  // 1 for each byte that begins a token
};

class BpeTokenizer final : public Tokenizer {
 public:
  struct Parts {
    std::string name;
    std::vector<std::string> bytes;  // by id: the text that decode returns
    std::unique_ptr<BpeModel> model;
    PreTokenizer pre_tokenizer;
    AddedTokens raw, normalized;  // looked for in the text as given, and in the normalized text
    bool nfc = false;
    bool cuts_at_words = false;  // whether safe_cut's rule is proved for this pre-tokenizer
    std::optional<int32_t> eod;
  };
  explicit BpeTokenizer(Parts parts);
  ~BpeTokenizer() override;

  void encode(std::string_view text, std::vector<int32_t>& out) const override;
  std::unique_ptr<TokenDecoder> start_decoding() const override;
  int64_t vocab_size() const override { return int64_t(parts_.bytes.size()); }
  std::optional<int32_t> eod() const override { return parts_.eod; }
  std::string name() const override { return parts_.name; }
  size_t safe_cut(std::string_view text) const override;

 private:
  struct Scratch;
  void encode_raw(std::string_view text, Scratch& scratch, std::vector<int32_t>& out) const;
  void encode_normalized(std::string_view text, Scratch& scratch, std::vector<int32_t>& out) const;

  Parts parts_;
  mutable std::mutex mutex_;
  // A call of encode takes one and gives it back at its end.
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace mtrain::data
