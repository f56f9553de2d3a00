// Byte-level BPE with added tokens, put together by tokenizer_json.cpp.
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

// Texts that are always one token, found leftmost and then longest before anything else is done.
class AddedTokens {
 public:
  void add(const std::string& content, int32_t id);
  // The first one in text[from, end); false when there is none.
  bool find(std::string_view text, size_t from, size_t& begin, size_t& end, int32_t& id) const;
  bool empty() const { return tokens_.empty(); }

 private:
  struct Token {
    std::string content;
    int32_t id;
  };
  std::vector<Token> tokens_;                                // longest first
  std::vector<uint8_t> starts_ = std::vector<uint8_t>(256);  // bytes that begin one
};

class BpeTokenizer final : public Tokenizer {
 public:
  struct Parts {
    std::string name;
    std::vector<std::string> bytes;  // by id; what decode gives
    std::unique_ptr<BpeModel> model;
    PreTokenizer pre_tokenizer;
    AddedTokens raw, normalized;  // found in the text as given, and after normalisation
    bool nfc = false;
    bool cuts_at_words = false;  // the pre-tokenizer is one for which safe_cut's rule was proved
    std::optional<int32_t> eod;
  };
  explicit BpeTokenizer(Parts parts);
  ~BpeTokenizer() override;

  void encode(std::string_view text, std::vector<int32_t>& out) const override;
  std::string decode(std::span<const int32_t> ids) const override;
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
  mutable std::vector<std::unique_ptr<Scratch>>
      idle_;  // taken by a call of encode, then given back
};

}  // namespace mtrain::data
