// Text from tokens that arrive one by one, as generation makes them.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace mtrain::data {

// The text of one growing sequence. push() returns only complete characters: the bytes of an
// incomplete one wait for the tokens that complete it. Bytes that cannot belong to a character are
// returned unchanged. All returned texts together are Tokenizer::decode of all ids.
class DecodeStream {
 public:
  // `context` are the tokens before the first push, such as a prompt's. They can change the text of
  // the following tokens: some decoders drop the space at the start of a text, but not between
  // words. The text of the context is not returned. `tokenizer` must outlive the stream.
  explicit DecodeStream(const Tokenizer& tokenizer, std::span<const int32_t> context = {});

  // Takes the next token and returns the text that is now final, which may be empty. Throws
  // UserError for an id outside the vocabulary.
  std::string push(int32_t id);

  // Returns the rest of the text when the sequence ends, even an incomplete character.
  std::string finish();

 private:
  std::string take_complete_characters();

  std::unique_ptr<TokenDecoder> decoder_;
  std::string waiting_;
};

}  // namespace mtrain::data
