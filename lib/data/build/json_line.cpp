#include "data/build/json_line.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace mtrain::data {
namespace {

// Describes an object that has no text in the requested field, and the option that reads the
// object. `pairs`: the fields are those of prompts and answers. `earlier`: lines before it had the
// fields.
LineFault fault_of_object(const nlohmann::json& object, const std::string& field, bool pairs,
                          bool earlier) {
  for (const char* turns : {"messages", "conversations"})
    if (object.contains(turns))
      return {fmt::format("the line holds a conversation, \"{}\"", turns),
              fmt::format("add --messages-field {}: the tokenizer's chat template writes its text, "
                          "or that of --chat-template",
                          turns)};
  std::string texts, longest;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) continue;
    texts += (texts.empty() ? "" : ", ") + key;
    if (longest.empty() || value.get_ref<const std::string&>().size() >
                               object[longest].get_ref<const std::string&>().size())
      longest = key;
  }
  std::string other;  // the type of the field's value, if it is not a text
  if (const auto found = object.find(field); found != object.end()) {
    const std::string type = found->type_name();
    const char* article = found->is_null() ? "" : type[0] == 'a' || type[0] == 'o' ? "an " : "a ";
    other = fmt::format("\"{}\" is {}{}, so ", field, article, type);
  }
  LineFault fault{fmt::format("{}there is no string field \"{}\"", other, field), ""};
  fault.why += texts.empty() ? ", and the line has no string field at all"
                             : "; the line's string fields: " + texts;
  if (earlier || !other.empty()) {
    fault.hint = LineFault().hint;
    return fault;
  }
  if (texts.empty()) {
    fault.hint = pairs ? "write a prompt and an answer into each line"
                       : "write the text of each line into a field \"text\"";
    return fault;
  }
  const auto has = [&](const char* name) {
    const auto found = object.find(name);
    return found != object.end() && found->is_string();
  };
  for (const char* prompt : {"prompt", "question", "instruction", "input", "query"})
    for (const char* answer : {"answer", "completion", "response", "output", "target"})
      if (has(prompt) && has(answer)) {
        fault.hint = fmt::format("{} --prompt-field {} --answer-field {}", pairs ? "give" : "add",
                                 prompt, answer);
        return fault;
      }
  fault.hint = pairs ? "name the two fields of the line with --prompt-field and --answer-field, or "
                       "leave such lines out: --skip-bad-lines"
                     : "add --json-field " + longest;
  return fault;
}

// Describes an object without a list of messages in the requested field.
LineFault fault_without_messages(const nlohmann::ordered_json& object, const std::string& field) {
  LineFault fault{fmt::format("the line lacks the field \"{}\"", field)};
  for (const auto& [key, value] : object.items())
    if (value.is_array() && !value.empty() && value[0].is_object()) {
      fault.hint = fmt::format("give --messages-field {}", key);
      return fault;
    }
  return fault;
}

}  // namespace

std::optional<std::vector<std::string>> texts_of_line(std::string_view line,
                                                      const std::vector<std::string>& fields,
                                                      bool earlier, LineFault& fault) {
  nlohmann::json value;
  try {
    value = parse_json(line, "the line");
  } catch (const UserError& e) {
    fault.why = e.message();
    return std::nullopt;
  }
  if (!value.is_object()) {
    fault.why = "not a JSON object";
    return std::nullopt;
  }
  std::vector<std::string> texts;
  for (const std::string& field : fields) {
    const auto found = value.find(field);
    if (found == value.end() || !found->is_string()) {
      fault = fault_of_object(value, field, fields.size() == 2, earlier);
      return std::nullopt;
    }
    texts.push_back(std::move(found->get_ref<std::string&>()));
  }
  return texts;
}

std::optional<ChatText> chat_of_line(std::string_view line, const std::string& field,
                                     const ChatTemplate& chat, LineFault& fault,
                                     const ChatLine& how) {
  try {
    const auto row = parse_ordered_json(line, "the line");
    if (!row.is_object()) {
      fault.why = "not a JSON object";
      return std::nullopt;
    }
    const bool other =
        !how.otherwise.empty() && !row.contains(field) && row.contains(how.otherwise);
    if (!other && !row.contains(field)) {
      fault = fault_without_messages(row, field);
      return std::nullopt;
    }
    const Conversation conversation =
        read_conversation(row, other ? how.otherwise : field, how.plain);
    if (std::ranges::count(conversation.by_assistant, true) == 0) {
      fault.why = "the conversation has no message of the assistant, so no label";
      return std::nullopt;
    }
    return chat.training_text(conversation, how.headers);
  } catch (const UserError& e) {
    fault.why = e.message();
    if (!e.hint().empty()) fault.hint = e.hint();
    return std::nullopt;
  }
}

}  // namespace mtrain::data
