// Text to token ids and back.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text` to `out`. Any bytes are welcome, also invalid UTF-8. No token is
  // added at the start or the end. Safe to call from several threads at once.
  virtual void encode(std::string_view text, std::vector<int32_t>& out) const = 0;

  // The bytes the ids stand for; a token may be a part of a UTF-8 character. Throws UserError for
  // an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  virtual int64_t vocab_size() const = 0;          // largest id + 1
  virtual std::optional<int32_t> eod() const = 0;  // the end-of-document id
  virtual std::string name() const = 0;            // "byte", or the file it came from

  // The largest n < text.size() such that encode(text[0, n)) followed by encode(text[n, end)) gives
  // the ids of the whole text, however it goes on; at a line's start if there is such a place, 0
  // when none is known. Long documents are cut there.
  virtual size_t safe_cut(std::string_view text) const = 0;
};

// 256 byte values and the end-of-document id 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

// A byte-level BPE from the text of a Hugging Face tokenizer.json (`name` appears in errors). What
// it asks for and we do not do is a UserError that names it, never other ids. Its post-processor,
// truncation and padding are not applied. `eod` is the content of the end-of-document token; empty
// picks the usual one ("<|endoftext|>", ...) if it is there.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string_view json, const std::string& name,
                                              const std::string& eod = "");

// `what` is "byte", a tokenizer.json or a folder that holds one.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& what, const std::string& eod = "");

}  // namespace mtrain::data
