// The text of conversations, by the chat template of a tokenizer.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "data/jinja/template.h"

namespace mtrain::data {

// Messages as a template reads them.
struct Conversation {
  std::vector<jinja::Value> messages = {};
  std::vector<bool> by_assistant = {};  // for each message
  jinja::Value tools = {};              // none without tools
};

// Reads `row[field]`, a list of {"role": ..., "content": ...} or, in ShareGPT's form, of {"from":
// ..., "value": ...}, and `row.tools` if it is there: a list, or the JSON text of one.
// `plain`: templates get texts, as AutoModel's ChatDataset writes them. Parts of a content are
// joined by spaces, null is an empty text, and arguments of a tool's call are JSON text.
// Throws UserError for anything that no template could use: the message names its number.
Conversation read_conversation(const nlohmann::ordered_json& row, const std::string& field,
                               bool plain = false);

// Adds a message of plain text.
void add_message(Conversation& conversation, const std::string& role, const std::string& content);

// A text, and the bytes of it that the assistant says: pairs of begin and end, in order.
struct ChatText {
  std::string text;
  std::vector<std::pair<size_t, size_t>> spans;
};

class ChatTemplate {
 public:
  // `special_tokens` are variables of the template, such as bos_token. Throws UserError for a
  // mistake in the template.
  ChatTemplate(std::string_view source, std::string name, jinja::Variables special_tokens = {});

  // Renders the messages. `ask`: the text ends with the beginning of the assistant's answer. Throws
  // UserError, as do the functions below.
  std::string render(const Conversation& conversation, bool ask) const;

  // Renders a conversation for training. The assistant's spans are those of the template's blocks
  // `generation`. Without such blocks, an answer is what the text has more than the text of the
  // messages before it, and the end of a turn belongs to it. The text of the first messages must
  // then be a prefix of the text of all. `headers`: the text that asks for an answer belongs to it.
  // Templates that write the date get 26 Jul 2024, which published ones write if they cannot ask
  // for it: the same rows make the same text on every day and host.
  ChatText training_text(const Conversation& conversation, bool headers = false) const;

  // Returns the text that ends an answer, such as "<|im_end|>"; empty if there is none.
  std::string end_of_turn() const;

  const std::string& name() const { return template_.name(); }
  const std::string& source() const { return source_; }

 private:
  jinja::Rendered render_first(const Conversation& conversation, size_t count, bool ask, bool track,
                               std::optional<std::tm> now = {}) const;
  std::vector<std::pair<size_t, size_t>> spans_by_prefixes(const Conversation& conversation,
                                                           const std::string& text,
                                                           bool headers) const;

  std::string source_;
  jinja::Template template_;
  jinja::Variables special_tokens_;
};

// Loads the template `given`: a file, a folder, or the text of a template. If it is empty, loads
// that of the tokenizer (load_tokenizer's argument): chat_template.jinja, or `chat_template` in
// tokenizer_config.json, beside its tokenizer.json. Throws UserError if there is none.
std::shared_ptr<const ChatTemplate> load_chat_template(const std::string& given,
                                                       const std::string& tokenizer);

}  // namespace mtrain::data
