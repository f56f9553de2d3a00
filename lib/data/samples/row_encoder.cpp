#include "data/samples/row_encoder.h"

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/strings.h"
#include "data/chat/encode_chat.h"
#include "data/dataset/permutation.h"

namespace mtrain::data {

namespace fs = std::filesystem;

std::shared_ptr<const ChatTemplate> chat_template_of(const SampleSource& source) {
  using Format = SampleSource::Format;
  const bool chat = source.format == Format::messages;
  const std::string& given = source.chat_template;
  if (source.format == Format::text || (!chat && given.empty())) return nullptr;
  const bool of_tokenizer = given.empty() || given == "tokenizer" || given == "auto";
  try {
    return load_chat_template(of_tokenizer ? "" : given, source.tokenizer);
  } catch (const UserError& e) {
    if (given == "auto" && !chat) return nullptr;
    if (of_tokenizer) load_tokenizer(source.tokenizer);  // an absent one has its own error
    throw UserError(
        fmt::format("{}: {}", source.name, e.message()),
        of_tokenizer ? fmt::format("write {}.template: a file, or a template's text", source.name)
                     : e.hint());
  }
}

RowEncoder::RowEncoder(const SampleSource& source, const std::vector<fs::path>& files,
                       const Tokenizer& tokenizer, std::shared_ptr<const ChatTemplate> chat)
    : source_(source), tokenizer_(tokenizer), chat_(std::move(chat)) {
  if (source.format == SampleSource::Format::prompt_completion) {
    prompt_.emplace(source.prompt, source.name + ".prompt");
    completion_.emplace(source.completion, source.name + ".completion");
  }
  begin_ = begin_of_text(chat_ ? BeginOfText::none : BeginOfText::automatic, tokenizer);
  if (source.end_of_text && !tokenizer.eod())
    throw UserError(
        fmt::format("{}: the tokenizer {} has no end of text", source.name, tokenizer.name()),
        fmt::format("write {}.end_of_text: false", source.name));
  if (source.split.sliced() || source.limit) choose_rows(files);
}

// Counts the rows of all files, and marks the lines that split and limit leave.
void RowEncoder::choose_rows(const std::vector<fs::path>& files) {
  std::vector<std::pair<std::vector<bool>*, size_t>> rows;  // the line of each row
  for (const fs::path& file : files) {
    std::vector<bool>& lines = wanted_[file];
    std::ifstream input(file);
    std::string text;
    for (size_t line = 0; std::getline(input, text); ++line) {
      lines.push_back(false);
      if (!trim(text).empty()) rows.emplace_back(&lines, line);
    }
  }
  const auto count = int64_t(rows.size());
  auto [first, last] = source_.split.range(count);
  if (source_.limit) last = std::min(last, first + *source_.limit);
  if (first >= last)
    throw UserError(fmt::format("{}: split and limit leave none of {} rows", source_.name, count),
                    "choose rows that the data have");
  const auto seed = uint64_t(source_.shuffle_seed.value_or(0));
  const Permutation order(rng_key(seed, "rows"), count);
  for (int64_t i = first; i < last; ++i) {
    const auto& [lines, line] = rows[size_t(source_.shuffle_seed ? order(i) : i)];
    (*lines)[line] = true;
  }
}

bool RowEncoder::wants(const fs::path& file, int64_t line) const {
  const auto lines = wanted_.find(file);
  if (lines == wanted_.end()) return true;
  return line >= 1 && size_t(line) <= lines->second.size() && lines->second[size_t(line) - 1];
}

bool RowEncoder::encode(std::string_view line, LineFault& fault, std::vector<int32_t>& tokens,
                        std::vector<uint8_t>& labels) const {
  using Format = SampleSource::Format;
  const size_t before = tokens.size();
  try {
    if (source_.format == Format::messages) {
      // Data of ShareGPT call their messages conversations.
      auto chat = chat_of_line(line, source_.column, *chat_, fault,
                               {.headers = source_.headers,
                                .plain = source_.plain_messages,
                                .otherwise = source_.column == "messages" ? "conversations" : ""});
      if (!chat) return false;
      if (source_.last_answer) chat->spans.erase(chat->spans.begin(), chat->spans.end() - 1);
      encode_chat(*chat, tokenizer_, tokens, labels);
    } else {
      const auto row = parse_ordered_json(line, "the line");
      if (!row.is_object()) {
        fault.why = "not a JSON object";
        return false;
      }
      if (!encode_texts(row, fault, tokens, labels)) return false;
    }
  } catch (const UserError& e) {
    fault.why = e.message();
    if (!e.hint().empty()) fault.hint = e.hint();
    return false;
  }
  if (source_.end_of_text) tokens.push_back(*tokenizer_.eod()), labels.push_back(1);
  if (!source_.answers_only) std::fill(labels.begin() + long(before), labels.end(), uint8_t(1));
  return true;
}

bool RowEncoder::encode_texts(const nlohmann::ordered_json& row, LineFault& fault,
                              std::vector<int32_t>& tokens, std::vector<uint8_t>& labels) const {
  std::string prompt, completion;
  if (source_.format == SampleSource::Format::text) {
    const auto text = row.find(source_.column);
    if (text == row.end() || !text->is_string()) {
      fault.why = fmt::format("the row has no text in a column \"{}\"", source_.column);
      fault.hint = fmt::format("write {}.column", source_.name);
      return false;
    }
    completion = text->get_ref<const std::string&>();
  } else if (!prompt_->render(row, fault, prompt) || !completion_->render(row, fault, completion)) {
    return false;
  }
  if (chat_) {
    Conversation turns;
    add_message(turns, "user", prompt);
    add_message(turns, "assistant", completion);
    encode_chat(chat_->training_text(turns, source_.headers), tokenizer_, tokens, labels);
    return true;
  }
  tokens.insert(tokens.end(), begin_.begin(), begin_.end());
  const size_t first = tokens.size();
  tokenizer_.encode(prompt, tokens);
  const size_t answer = tokens.size();
  if (source_.together && !prompt.empty()) {
    tokens.resize(first);
    tokenizer_.encode(prompt + completion, tokens);
  } else {
    tokenizer_.encode(completion, tokens);
  }
  labels.resize(std::min(answer, tokens.size()), 0);
  labels.resize(tokens.size(), 1);
  return true;
}

}  // namespace mtrain::data
