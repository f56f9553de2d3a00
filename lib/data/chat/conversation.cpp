// Reads conversations from JSON.
#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "data/chat/chat_template.h"
#include "data/jinja/json_value.h"

namespace mtrain::data {
namespace {

using OrderedJson = nlohmann::ordered_json;

const std::vector<std::string> kRoles = {"system",    "user",     "assistant", "tool",
                                         "developer", "function", "ipython"};

std::string kind_of(const OrderedJson& value) {
  const std::string type = value.type_name();
  return value.is_null() ? type : (type[0] == 'a' || type[0] == 'o' ? "an " : "a ") + type;
}

[[noreturn]] void refuse_message(size_t number, const std::string& why,
                                 const std::string& hint = "") {
  throw UserError(fmt::format("message {}: {}", number, why), hint);
}

// Returns a message {"from": "human", "value": ...} of ShareGPT's form as one with a role and a
// content; others as they are.
OrderedJson with_role(const OrderedJson& message) {
  const auto from = message.find("from"), value = message.find("value");
  if (message.contains("role") || from == message.end() || value == message.end()) return message;
  OrderedJson out{{"role", *from}, {"content", *value}};
  if (!from->is_string()) return out;
  const std::string name = from->get<std::string>();
  if (name == "human") out["role"] = "user";
  for (const char* assistant : {"gpt", "chatgpt", "bot", "model"})
    if (name == assistant) out["role"] = "assistant";
  return out;
}

void check_role(const OrderedJson& message, size_t number) {
  const auto role = message.find("role");
  if (role == message.end()) refuse_message(number, "it has no \"role\"");
  if (!role->is_string())
    refuse_message(number, fmt::format("its role is {}, not a text", kind_of(*role)));
  const std::string name = role->get<std::string>();
  if (std::ranges::find(kRoles, name) != kRoles.end()) return;
  const std::string meant = name == "human" ? "user"
                            : name == "gpt" || name == "bot" || name == "model"
                                ? "assistant"
                                : nearest(name, kRoles);
  refuse_message(number, fmt::format("its role is \"{}\"", name),
                 meant.empty() ? "the roles are system, user, assistant and tool"
                               : fmt::format("did you mean \"{}\"?", meant));
}

void check_part(const OrderedJson& part, size_t number) {
  const auto type = part.is_object() ? part.find("type") : part.end();
  if (!part.is_object() || type == part.end() || !type->is_string())
    refuse_message(number, "a part of its content has no \"type\"");
  if (*type != "text")
    refuse_message(number, fmt::format("a part of its content has the type {}", type->dump()),
                   "mtrain reads texts alone");
  const auto text = part.find("text");
  if (text == part.end() || !text->is_string())
    refuse_message(number, "a part of its content has no \"text\"");
}

void check_content(const OrderedJson& message, size_t number) {
  const auto content = message.find("content");
  const auto calls = message.find("tool_calls");
  const bool has_calls = calls != message.end() && calls->is_array() && !calls->empty();
  if (content == message.end() || content->is_null()) {
    if (!has_calls) refuse_message(number, "it has no \"content\"");
    return;
  }
  if (content->is_array()) {
    for (const OrderedJson& part : *content) check_part(part, number);
    return;
  }
  if (!content->is_string())
    refuse_message(number, fmt::format("its content is {}, not a text", kind_of(*content)));
}

// Returns the message as a template reads it. What an assistant thinks has several names, as in
// transformers.
jinja::Value value_of_message(const OrderedJson& message) {
  const OrderedJson* thought = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"})
    if (const auto found = message.find(name);
        !thought && found != message.end() && !found->is_null())
      thought = &*found;
  if (!thought) return jinja::value_of_json(message);
  std::vector<std::pair<jinja::Value, jinja::Value>> entries;
  entries.emplace_back("thinking", jinja::value_of_json(*thought));
  for (const auto& [key, value] : message.items())
    entries.emplace_back(key, jinja::value_of_json(value));
  entries.emplace_back("reasoning_content", jinja::value_of_json(*thought));
  return jinja::make_dict(std::move(entries));
}

}  // namespace

Conversation read_conversation(const OrderedJson& row, const std::string& field) {
  const auto found = row.find(field);
  if (found == row.end()) throw UserError(fmt::format("the row lacks the field \"{}\"", field));
  if (!found->is_array())
    throw UserError(fmt::format("\"{}\" is {}, not a list of messages", field, kind_of(*found)));
  if (found->empty()) throw UserError(fmt::format("\"{}\" has no message", field));
  Conversation out;
  try {
    for (size_t i = 0; i < found->size(); ++i) {
      if (!(*found)[i].is_object())
        refuse_message(i + 1, fmt::format("it is {}, not an object with a role and a content",
                                          kind_of((*found)[i])));
      const OrderedJson message = with_role((*found)[i]);
      check_role(message, i + 1);
      check_content(message, i + 1);
      out.messages.push_back(value_of_message(message));
      out.by_assistant.push_back(message["role"] == "assistant");
    }
    if (const auto tools = row.find("tools"); tools != row.end() && !tools->is_null()) {
      if (!tools->is_array())
        throw UserError(fmt::format("\"tools\" is {}, not a list", kind_of(*tools)));
      if (!tools->empty()) out.tools = jinja::value_of_json(*tools);
    }
  } catch (const jinja::Fault& fault) {
    throw UserError(fault.why);
  }
  return out;
}

void add_message(Conversation& conversation, const std::string& role, const std::string& content) {
  conversation.messages.push_back(
      jinja::make_dict({{"role", jinja::Value(role)}, {"content", jinja::Value(content)}}));
  conversation.by_assistant.push_back(role == "assistant");
}

}  // namespace mtrain::data
