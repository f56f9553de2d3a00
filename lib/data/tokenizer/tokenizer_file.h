// Reading the parts of a Hugging Face tokenizer.json. A feature that mtrain lacks is an error that
// names it: ids must never differ silently.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer/decoder.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"

namespace mtrain::data {

// A JSON file; its functions throw UserError, which names it.
struct TokenizerFile {
  using Json = nlohmann::json;

  std::string name;
  Json root;

  void require(bool ok, const std::string& what) const;
  [[noreturn]] void unsupported(const std::string& what, const std::string& hint = "") const;

  static const Json& member(const Json& object, const char* key);  // null if it is absent
  bool flag(const Json& object, const char* key, bool otherwise) const;
  std::string text(const Json& object, const char* key, const std::string& where) const;
  int64_t count(const Json& object, const char* key, const std::string& where) const;
  const Json& list(const Json& object, const char* key, const std::string& where) const;
  std::string place(const std::string& where) const { return name + ": " + where; }

  // What a Replace or a Split searches for, {"String": ...} or {"Regex": ...}: an expression, or a
  // text that is not empty.
  struct Pattern {
    std::unique_ptr<Regex> regex;
    std::string source;  // of the expression, or the text
  };
  Pattern pattern(const Json& object, const std::string& where) const;
};

struct NormalizerPart {
  Normalizer normalizer;
  bool keeps_cuts = true;  // whether the rule of Tokenizer::safe_cut still holds
};
NormalizerPart read_normalizer(const TokenizerFile& file);

struct PreTokenizerPart {
  PreTokenizer pre_tokenizer;
  bool byte_level = false;     // words are bytes; else characters
  bool cuts_at_words = false;  // as NormalizerPart::keeps_cuts
};
PreTokenizerPart read_pre_tokenizer(const TokenizerFile& file);

struct DecoderPart {
  Decoder decoder;
  bool byte_level = false;  // the decoder maps the tokens' characters to bytes, and has no steps
};
// `byte_level` is the pre-tokenizer's; its inverse is the decoder if the file names none.
DecoderPart read_decoder(const TokenizerFile& file, bool byte_level);

// Returns the ids that the file's post-processor puts before a single text.
std::vector<int32_t> read_text_prefix(const TokenizerFile& file);

// Above every vocabulary; it keeps an absurd id from filling the memory.
constexpr int64_t kMaxTokenId = int64_t(1) << 22;

}  // namespace mtrain::data
