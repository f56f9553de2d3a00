// Turns text into token ids, and token ids into bytes.
#pragma once
#include <cstdint>
#include <filesystem>
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

  // Appends to `out` the bytes that become final with `id`; a token may be a part of a UTF-8
  // character. Throws UserError for an id outside the vocabulary.
  virtual void push(int32_t id, std::string& out) = 0;

  // Appends the bytes that were held back. Nothing may be pushed afterwards.
  virtual void finish(std::string& out) = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text` to `out`. `text` may be any bytes, even invalid UTF-8. Adds no token
  // at the start or the end. Several threads may call it at the same time.
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
  // encode(text[n, end)) gives the ids of the full text, whatever text follows. Prefers the last
  // suitable start of a line. Returns 0 if it knows no such place.
  virtual size_t safe_cut(std::string_view text) const = 0;
};

// The ids at the start of a document or a prompt.
enum class BeginOfText {
  automatic,  // the prefix in the tokenizer's own configuration (Tokenizer::text_prefix)
  none,
  always,  // this prefix or, if it is empty, the tokenizer's BOS token
};

// Returns these ids. Throws UserError for `always` if the tokenizer has no BOS token.
std::vector<int32_t> begin_of_text(BeginOfText begin, const Tokenizer& tokenizer);

// Ids 0 to 255 are the byte values; id 256 ends a document.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

// Makes a BPE tokenizer from `json`, the text of a Hugging Face tokenizer.json; `name` appears in
// errors. Its ids and texts are those of the tokenizers library. Ids must never differ silently:
// throws UserError, which names the feature, if mtrain lacks a feature of the file. The file's
// truncation and padding are ignored. `eod` is the text of the end-of-document token. If it is
// empty, that token is the configuration's eos_token, or the first usual one in the vocabulary
// ("<|endoftext|>", ...). `config` is the text of the tokenizer_config.json, or empty; its
// bos_token, add_bos_token and eos_token are used.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string_view json, const std::string& name,
                                              const std::string& eod = "",
                                              std::string_view config = "");

// `what` is "byte", the path of a tokenizer.json, or a folder that holds one; a
// tokenizer_config.json beside it is used. A process that loads an unchanged file again gets the
// same tokenizer.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& what,
                                                const std::string& eod = "");

// Returns the ids that end a text of the model in this Hugging Face folder. These are eos_token_id
// of its generation_config.json or, without one, of its config.json, each a number or a list; else
// the tokenizer's end-of-document id, if it has one. Throws UserError for malformed ids.
std::vector<int32_t> read_eos_ids(const std::filesystem::path& folder, const Tokenizer& tokenizer);

// Returns the eos_token_id of one such file, which messages call `name`; nothing if it has none.
std::optional<std::vector<int32_t>> parse_eos_ids(std::string_view text, const std::string& name);

}  // namespace mtrain::data
