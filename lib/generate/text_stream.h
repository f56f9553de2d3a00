// Turns the tokens of a sequence into text that can be shown at once: whole characters, as
// data::DecodeStream makes them, and nothing that might be the beginning of a stop string.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer/decode_stream.h"

namespace mtrain::generate {

class TextStream {
 public:
  // `prompt` holds the tokens before the first new one, which settle how a new one is written.
  // `stop` holds texts at which the sequence ends. `tokenizer` must outlive the stream.
  TextStream(const data::Tokenizer& tokenizer, std::span<const int32_t> prompt,
             std::vector<std::string> stop);

  // Returns the text that can be shown now: none of it was returned before. A text that ends at a
  // stop string ends before its first byte.
  std::string push(int32_t id);
  bool stopped() const { return stopped_; }  // a stop string was found
  // Returns what was held back, once there are no more tokens.
  std::string finish();

 private:
  std::string before_stop(std::string text);

  data::DecodeStream characters_;
  std::vector<std::string> stop_;
  std::string held_;  // may be the beginning of a stop string
  bool stopped_ = false;
};

}  // namespace mtrain::generate
