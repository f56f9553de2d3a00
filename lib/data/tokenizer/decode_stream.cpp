#include "data/tokenizer/decode_stream.h"

#include "data/tokenizer/utf8.h"

namespace mtrain::data {

DecodeStream::DecodeStream(const Tokenizer& tokenizer, std::span<const int32_t> context)
    : decoder_(tokenizer.start_decoding()) {
  for (int32_t id : context) {
    decoder_->push(id, waiting_);
    take_complete_characters();
  }
}

std::string DecodeStream::push(int32_t id) {
  decoder_->push(id, waiting_);
  return take_complete_characters();
}

std::string DecodeStream::finish() {
  decoder_->finish(waiting_);
  return std::exchange(waiting_, {});
}

std::string DecodeStream::take_complete_characters() {
  const size_t end = waiting_.size() - utf8_unfinished(waiting_);
  std::string whole = waiting_.substr(0, end);
  waiting_.erase(0, end);
  return whole;
}

}  // namespace mtrain::data
