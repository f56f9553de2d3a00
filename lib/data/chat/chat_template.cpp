#include "data/chat/chat_template.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/regular_file.h"
#include "base/strings.h"
#include "data/jinja/text.h"

namespace mtrain::data {
namespace fs = std::filesystem;
namespace {

// What a folder of a tokenizer has for templates.
struct ChatFolder {
  std::string source, name;  // of the template; empty if there is none
  jinja::Variables special_tokens;
};

// Adds the special tokens of a configuration: texts, or {"content": text}.
void add_special_tokens(const nlohmann::ordered_json& config, jinja::Variables& tokens) {
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    const auto content = value.is_object() ? value.find("content") : value.end();
    if (std::ranges::find(tokens, key, &jinja::Variables::value_type::first) != tokens.end())
      continue;
    if (value.is_string())
      tokens.emplace_back(key, jinja::Value(value.get<std::string>()));
    else if (value.is_object() && content != value.end() && content->is_string())
      tokens.emplace_back(key, jinja::Value(content->get<std::string>()));
  }
}

// Returns the template of a configuration: a text, or that of a list which is called default.
std::string template_of(const nlohmann::ordered_json& config, const std::string& name) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array())
    for (const auto& entry : *found)
      if (entry.is_object() && entry.value("name", "") == "default" && entry.contains("template") &&
          entry["template"].is_string())
        return entry["template"].get<std::string>();
  throw UserError(
      fmt::format("{}: chat_template is neither a text nor a list with a \"default\"", name),
      "give a template: --chat-template FILE");
}

ChatFolder read_folder(const fs::path& folder) {
  ChatFolder out;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = folder / name;
    if (!fs::exists(path)) continue;
    const auto config = parse_ordered_json(read_regular_file(path, kLargestJson), path.string());
    if (!config.is_object()) throw UserError(fmt::format("{} is not a JSON object", path.string()));
    add_special_tokens(config, out.special_tokens);
    if (out.source.empty()) out.source = template_of(config, path.string());
    if (!out.source.empty() && out.name.empty()) out.name = "the chat template of " + path.string();
  }
  if (const fs::path file = folder / "chat_template.jinja"; fs::exists(file)) {
    out.source = read_regular_file(file, kLargestJson);
    out.name = "the chat template " + file.string();
  }
  return out;
}

bool looks_like_template(const std::string& text) {
  return text.find("{{") != std::string::npos || text.find("{%") != std::string::npos;
}

// Whether a file holds a JSON object. A template may begin with {{, {% or {#.
bool is_json_object(std::string_view text) {
  text = trim(text);
  return text.size() > 1 && text[0] == '{' &&
         std::string_view("{%#").find(text[1]) == std::string::npos;
}

// Reads a template, or a configuration of a tokenizer that has one.
std::string read_template(const std::string& file) {
  std::string text = read_regular_file(file, kLargestJson);
  if (!is_json_object(text)) return text;
  text = template_of(parse_ordered_json(text, file), file);
  if (text.empty())
    throw UserError(fmt::format("{} has no key \"chat_template\"", file),
                    "give a template, or a tokenizer_config.json that has one");
  return text;
}

// Friday, 26 July 2024
constexpr std::tm kTrainingDay{
    .tm_mday = 26, .tm_mon = 6, .tm_year = 124, .tm_wday = 5, .tm_yday = 207};

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string name,
                           jinja::Variables special_tokens)
    : source_(source),
      template_(source, std::move(name)),
      special_tokens_(std::move(special_tokens)) {}

jinja::Rendered ChatTemplate::render_first(const Conversation& conversation, size_t count, bool ask,
                                           bool track, std::optional<std::tm> now) const {
  const auto& all = conversation.messages;
  jinja::Variables variables = special_tokens_;
  variables.emplace_back("messages",
                         jinja::Value::list({all.begin(), all.begin() + int64_t(count)}));
  variables.emplace_back("tools", conversation.tools);
  variables.emplace_back("documents", jinja::Value());
  variables.emplace_back("add_generation_prompt", jinja::Value(ask));
  return template_.render(variables, track, {}, now);
}

std::string ChatTemplate::render(const Conversation& conversation, bool ask) const {
  return render_first(conversation, conversation.messages.size(), ask, false).text;
}

ChatText ChatTemplate::training_text(const Conversation& conversation, bool headers) const {
  const bool track = template_.has_generation();
  jinja::Rendered all =
      render_first(conversation, conversation.messages.size(), false, track, kTrainingDay);
  if (!track) all.generated = spans_by_prefixes(conversation, all.text, headers);
  std::erase_if(all.generated, [](const auto& span) { return span.first == span.second; });
  if (all.generated.empty())
    throw UserError(fmt::format("{} marks no text of the assistant", name()));
  return {std::move(all.text), std::move(all.generated)};
}

std::vector<std::pair<size_t, size_t>> ChatTemplate::spans_by_prefixes(
    const Conversation& conversation, const std::string& text, bool headers) const {
  std::vector<std::pair<size_t, size_t>> spans;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    if (!conversation.by_assistant[i]) continue;
    const bool last = i + 1 == conversation.messages.size();
    const std::string through =
        last ? text : render_first(conversation, i + 1, false, false, kTrainingDay).text;
    std::string before = render_first(conversation, i, !headers, false, kTrainingDay).text;
    if (!through.starts_with(before))
      before = render_first(conversation, i, false, false, kTrainingDay).text;
    if (!through.starts_with(before) || !text.starts_with(through))
      throw UserError(
          fmt::format("{} writes the messages before number {} differently when others follow, so "
                      "the answers cannot be found in its text",
                      name(), through.starts_with(before) ? i + 2 : i + 1),
          "mark the answers in the template: {% generation %} ... {% endgeneration %}");
    spans.emplace_back(before.size(), through.size());
  }
  return spans;
}

std::string ChatTemplate::end_of_turn() const {
  const std::string mark = "mtrain-answer";
  Conversation conversation;
  add_message(conversation, "user", "mtrain-question");
  add_message(conversation, "assistant", mark);
  const std::string text = render(conversation, false);
  const size_t at = text.rfind(mark);
  if (at == std::string::npos) return "";
  const std::string after = text.substr(at + mark.size());
  const std::string_view end = jinja::strip(after, nullptr, true, true);
  return std::string(end.empty() ? std::string_view(after) : end);
}

std::shared_ptr<const ChatTemplate> load_chat_template(const std::string& given,
                                                       const std::string& tokenizer) {
  ChatFolder folder;
  const fs::path path = tokenizer;
  if (tokenizer != "byte" && !tokenizer.empty())
    folder = read_folder(fs::is_directory(path) ? path : path.parent_path());
  std::error_code error;
  if (looks_like_template(given)) {
    folder.source = given, folder.name = "the chat template";
  } else if (fs::is_directory(given, error)) {
    const ChatFolder other = read_folder(given);
    folder.source = other.source, folder.name = other.name;
  } else if (!given.empty()) {
    if (!fs::exists(given, error))
      throw UserError(fmt::format("the chat template {} does not exist", given),
                      "give a file, a folder that holds one, or the text of a template");
    folder.source = read_template(given);
    folder.name = "the chat template " + given;
  }
  if (folder.source.empty())
    throw UserError(
        fmt::format("{} has no chat template",
                    given.empty() ? "the tokenizer " + tokenizer : given),
        "give one: --chat-template FILE. It is chat_template.jinja, or `chat_template` in "
        "tokenizer_config.json, beside the tokenizer.json of a chat model");
  return std::make_shared<const ChatTemplate>(folder.source, folder.name,
                                              std::move(folder.special_tokens));
}

}  // namespace mtrain::data
