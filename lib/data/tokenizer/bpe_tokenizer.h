// BPE with added tokens. tokenizer_json.cpp makes its parts.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/decoder.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer.h"

namespace mtrain::data {

class BpeTokenizer final : public Tokenizer {
 public:
  struct Parts {
    std::string name;
    std::vector<std::string> tokens;  // by id: the decoder's input; empty for unused ids
    Decoder decoder;
    std::unique_ptr<BpeModel> model;
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    AddedTokens raw, normalized;  // matched in the original text, and in the normalized text
    bool cuts_at_words = false;   // whether safe_cut's rule is proved for this tokenizer
    std::optional<int32_t> eod, bos;
    std::vector<int32_t> text_prefix;
  };
  explicit BpeTokenizer(Parts parts);
  ~BpeTokenizer() override;

  void encode(std::string_view text, std::vector<int32_t>& out) const override;
  std::unique_ptr<TokenDecoder> start_decoding() const override;
  int64_t vocab_size() const override { return int64_t(parts_.tokens.size()); }
  std::optional<int32_t> eod() const override { return parts_.eod; }
  std::optional<int32_t> bos() const override { return parts_.bos; }
  std::string name() const override { return parts_.name; }
  std::span<const int32_t> text_prefix() const override { return parts_.text_prefix; }
  size_t safe_cut(std::string_view text) const override;

 private:
  struct Scratch;
  class Decoding;
  void encode_raw(std::string_view text, bool at_start, Scratch& scratch,
                  std::vector<int32_t>& out) const;
  void encode_normalized(std::string_view text, bool at_start, Scratch& scratch,
                         std::vector<int32_t>& out) const;

  Parts parts_;
  mutable std::mutex mutex_;
  // A call of encode takes one and gives it back at its end.
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace mtrain::data
