// The tokens of a conversation, and which of them are the assistant's.
#pragma once
#include <cstdint>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"

namespace mtrain::data {

// Appends the tokens of `chat.text` as a whole, and for each token whether it has a byte of a span.
void encode_chat(const ChatText& chat, const Tokenizer& tokenizer, std::vector<int32_t>& tokens,
                 std::vector<uint8_t>& labels);

}  // namespace mtrain::data
