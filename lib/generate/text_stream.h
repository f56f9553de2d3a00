// Turns the tokens of a sequence into text that can be shown immediately: complete characters, as
// from data::DecodeStream, and nothing that might be the beginning of a stop string.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer/decode_stream.h"

namespace mtrain::generate {

class TextStream {
 public:
  // `prompt` holds the tokens before the first new one: how a token is decoded depends on the
  // previous tokens. `stop` holds texts at which the sequence ends. `tokenizer` must outlive the
  // stream.
  TextStream(const data::Tokenizer& tokenizer, std::span<const int32_t> prompt,
             std::vector<std::string> stop);

  // Returns the new text that can be shown now. A text that ends at a stop string ends before its
  // first byte.
  std::string push(int32_t id);
  bool stopped() const { return stopped_; }  // a stop string was found
  // Returns the text that was held back. Called after the last token.
  std::string finish();

 private:
  std::string before_stop(std::string text);

  data::DecodeStream characters_;
  std::vector<std::string> stop_;
  std::string held_;  // may be the beginning of a stop string
  bool stopped_ = false;
};

}  // namespace mtrain::generate
