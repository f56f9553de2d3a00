// A conversation with a trained model.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "run/generate_text.h"

namespace mtrain::run {

struct ChatJob {
  GenerateJob generate;            // its prompts are not used; one rank
  std::string chat_template = {};  // for load_chat_template(); empty: the tokenizer's
  std::string system = {};         // the first message, unless it is empty
};

// The person at the other end.
struct ChatPartner {
  std::function<std::optional<std::string>()> next;  // the next message; nothing ends the chat
  std::function<void(std::string_view)> text;        // receives an answer piece by piece
  // Whether the answer should end now. The part that was shown stays in the conversation.
  std::function<bool()> interrupts;
  std::function<void(generate::End)> end;  // of an answer that was not interrupted
  std::function<void()> stopped;           // the end of one that was
};

// The tokens of a conversation, at most. The model's context may be shorter.
inline constexpr int64_t kLongestChat = 8192;

// Answers the partner's messages until there are none. An answer ends at the end of a turn of the
// chat template, and where texts of generate_text() end. If the conversation fills the context, its
// first messages are forgotten. Throws UserError if the model has no chat template, the template
// refuses the conversation, or one message fills the context.
void chat(const ChatJob& job, generate::GenerateOptions options, const ChatPartner& partner);

}  // namespace mtrain::run
