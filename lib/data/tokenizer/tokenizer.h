// Turns text into token ids, and token ids into bytes.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mtrain::data {

// Decodes one sequence, token by token.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;

  // Appends to `out` the bytes that are certain once `id` follows; a token may be a part of a UTF-8
  // character. Throws UserError for an id outside the vocabulary.
  virtual void push(int32_t id, std::string& out) = 0;

  // Appends what it held back. Nothing may be pushed afterwards.
  virtual void finish(std::string& out) = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text` to `out`. `text` may be any bytes, even invalid UTF-8. Adds no token
  // at the start or the end. Several threads may call it at once.
  virtual void encode(std::string_view text, std::vector<int32_t>& out) const = 0;

  // Returns the bytes that the ids stand for; a token may be a part of a UTF-8 character. Throws
  // UserError for an id outside the vocabulary. DecodeStream (decode_stream.h) is for ids that
  // arrive one by one.
  std::string decode(std::span<const int32_t> ids) const;

  // Starts to decode a sequence. The tokenizer must outlive the decoder.
  virtual std::unique_ptr<TokenDecoder> start_decoding() const = 0;

  virtual int64_t vocab_size() const = 0;          // the largest id + 1
  virtual std::optional<int32_t> eod() const = 0;  // the end-of-document id, if there is one
  virtual std::optional<int32_t> bos() const { return {}; }  // begins a text, if there is one
  virtual std::string name() const = 0;                      // "byte", or the path of its file

  // The ids that the tokenizer's own configuration puts before every text: its BOS token, for some
  // models several tokens, for many none. encode() does not add them.
  virtual std::span<const int32_t> text_prefix() const { return {}; }

  // Returns an n < text.size() at which a long document may be cut: encode(text[0, n)) followed by
  // encode(text[n, end)) gives the ids of the whole text, whatever text follows. Prefers the last
  // suitable start of a line. Returns 0 if it knows no such place.
  virtual size_t safe_cut(std::string_view text) const = 0;
};

// Ids 0 to 255 are the byte values; id 256 ends a document.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

// Makes a byte-level BPE tokenizer from `json`, the text of a Hugging Face tokenizer.json; `name`
// appears in errors. An unsupported feature is a UserError that names it, so that ids never differ
// silently. The file's post-processor, truncation and padding are ignored. `eod` is the text
// of the end-of-document token; if it is empty, the first usual one in the vocabulary is taken
// ("<|endoftext|>", ...).
std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string_view json, const std::string& name,
                                              const std::string& eod = "");

// `what` is "byte", the path of a tokenizer.json, or a folder that holds one.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& what, const std::string& eod = "");

}  // namespace mtrain::data
