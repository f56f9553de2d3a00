// Reads conversations from JSON.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"
#include "data/chat/chat_template.h"
#include "data/jinja/function.h"
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

// Replaces a content that is null or a list of parts by its text.
void make_content_plain(OrderedJson& message, size_t number) {
  OrderedJson& content = message["content"];
  if (content.is_null()) content = "";
  if (!content.is_array()) return;
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    OrderedJson& part = content[i];
    if (part.is_object() && !part.contains("type")) part["type"] = "text";
    check_part(part, number);
    text += (i == 0 ? "" : " ") + part["text"].get<std::string>();
  }
  content = text;
}

// Replaces the arguments of an assistant's calls by their JSON text, and adds what a call lacks.
void make_calls_plain(OrderedJson& calls) {
  for (size_t i = 0; i < calls.size(); ++i) {
    OrderedJson& call = calls[i];
    if (!call.is_object()) continue;  // the template decides
    const auto add = [&](const char* key, const std::string& text) {
      OrderedJson& value = call[key];
      if (value.is_null() || value == "") value = text;
    };
    add("id", fmt::format("call_{}", i));
    add("type", "function");
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object()) continue;
    const auto arguments = function->find("arguments");
    if (arguments != function->end() && !arguments->is_string() && !arguments->is_null())
      *arguments = jinja::to_json(jinja::value_of_json(*arguments), {.ascii = true});
  }
}

void make_plain(OrderedJson& message, size_t number) {
  make_content_plain(message, number);
  if (message["role"] != "assistant") return;
  if (const auto thought = message.find("reasoning_content");
      thought != message.end() && thought->is_null())
    *thought = "";
  if (const auto calls = message.find("tool_calls"); calls != message.end() && calls->is_array())
    make_calls_plain(*calls);
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

namespace {

// Returns the list of tools that a row has; null without tools.
OrderedJson tools_of(const OrderedJson& row) {
  const auto found = row.find("tools");
  if (found == row.end() || found->is_null()) return nullptr;
  OrderedJson tools =
      found->is_string() ? parse_ordered_json(found->get<std::string>(), "\"tools\"") : *found;
  if (!tools.is_array() && !tools.is_null())
    throw UserError(fmt::format("\"tools\" is {}, not a list", kind_of(tools)));
  return tools.empty() ? nullptr : tools;
}

}  // namespace

Conversation read_conversation(const OrderedJson& row, const std::string& field, bool plain) {
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
      OrderedJson message = with_role((*found)[i]);
      check_role(message, i + 1);
      if (plain) make_plain(message, i + 1);
      check_content(message, i + 1);
      out.messages.push_back(value_of_message(message));
      out.by_assistant.push_back(message["role"] == "assistant");
    }
    if (const OrderedJson tools = tools_of(row); !tools.is_null())
      out.tools = jinja::value_of_json(tools);
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
