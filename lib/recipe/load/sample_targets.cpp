#include "recipe/load/sample_targets.h"

#include <array>
#include <list>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "base/strings.h"
#include "recipe/schema/schema.h"

namespace mtrain::recipe {
namespace {

// The sections of AutoModel, mtrain's short form, and the fields.
struct Place {
  std::string_view foreign, native, fields;
};
constexpr std::array kPlaces{
    Place{"dataset", "dataset.train", "dataset.train_samples"},
    Place{"validation_dataset", "dataset.validation", "dataset.validation_samples"}};

// A class of AutoModel: what it sets, and which arguments set which fields.
struct SampleClass {
  std::vector<std::string_view> names;
  std::vector<FieldText> sets, arguments;  // below the fields' section, and below AutoModel's
};

const std::vector<SampleClass>& sample_classes() {
  static const std::vector<SampleClass> list{
      {{"squad.make_squad_dataset", "squad.Squad"},
       {{"format", "prompt_completion"},
        {"prompt", "'Context: {context} Question: {question} Answer: '"},
        {"completion", "'{answers.text[0]|trim}'"},
        {"template", "auto"},
        {"headers", "true"},
        {"together", "true"},
        {"end_of_text", "false"},
        {"cut", "false"},
        {"files", "rajpurkar/squad"},
        {"split", "train"}},
       {{"dataset_name", "files"},
        {"split", "split"},
        {"limit_dataset_samples", "limit"},
        {"chat_template", "template"}}},
      {{"hellaswag.HellaSwag"},
       {{"format", "prompt_completion"},
        {"prompt", "'{ctx}'"},
        {"completion", "'{endings[label]}'"},
        {"end_of_text", "false"},
        {"cut", "false"},
        {"split", "train"}},
       {{"path_or_dataset", "files"}, {"split", "split"}, {"num_samples_limit", "limit"}}},
      {{"chat_dataset.ChatDataset"},
       {{"format", "messages"},
        {"headers", "true"},
        {"plain_messages", "true"},
        {"end_of_text", "false"},
        {"cut", "false"}},
       {{"path_or_dataset_id", "files"},
        {"split", "split"},
        {"name", "subset"},
        {"shuffle_seed", "shuffle_seed"},
        {"mask_history", "last_answer_only"},
        {"chat_template", "template"}}},
      {{"column_mapped_text_instruction_dataset.ColumnMappedTextInstructionDataset"},
       {{"format", "prompt_completion"},
        {"together", "true"},
        {"end_of_text", "false"},
        {"cut", "false"}},
       {{"path_or_dataset_id", "files"},
        {"split", "split"},
        {"name", "subset"},
        {"limit_dataset_samples", "limit"},
        {"answer_only_loss_mask", "answers_only"}}},
      {{"nanogpt_dataset.NanogptDataset"},
       {{"format", "tokens"}, {"end_of_text", "false"}},
       {{"file_pattern", "files"}}},
      {{"mock_iterable_dataset.MockIterableDataset"},
       {{"format", "mock"}, {"limit", "1000000"}},
       {{"num_samples", "limit"}, {"vocab_size", "vocab_size"}}}};
  return list;
}

std::vector<Target> make_targets() {
  static std::list<std::string> texts;  // the targets refer to them
  const auto below = [&](std::string_view section, std::string_view name) -> std::string_view {
    return texts.emplace_back(fmt::format("{}.{}", section, name));
  };
  std::vector<Target> targets;
  for (const Place& place : kPlaces)
    for (const SampleClass& c : sample_classes()) {
      Target target{.section = place.foreign};
      for (const FieldText& field : c.sets)
        (field.path == "format" ? target.sets : target.defaults)
            .push_back({below(place.fields, field.path), field.text});
      for (const FieldText& argument : c.arguments)
        target.arguments.push_back(
            {below(place.foreign, argument.path), below(place.fields, argument.text)});
      // The samples of random tokens are complete micro-batches.
      if (c.sets.front().text == "mock" && place.foreign == "dataset")
        target.arguments.push_back({"dataset.batch_size", "train.micro_batch_size"});
      for (const std::string_view name : c.names) {
        target.name = name;
        targets.push_back(target);
      }
    }
  return targets;
}

bool is_on(const Node& node) {
  const std::string word = to_lower(node.text);
  return !node.unset() && word != "false" && word != "no" && word != "do_not_truncate";
}

// Sets prompt and completion from AutoModel's names of columns.
void set_columns(LayerSettings& layer, const Place& place, const SourceLocation& location,
                 const Node& node) {
  std::string prompt, completion;
  for (const std::string_view role : {"context", "question", "answer"})
    for (size_t i = 0; i < node.keys.size(); ++i)
      if (node.keys[i].name == role)
        (role == "answer" ? completion : prompt) +=
            fmt::format("{{{}}}{}", node.items[i].text, role == "answer" ? "" : " ");
  if (prompt.empty() || completion.empty())
    return layer.diagnostics.add_at(Severity::error, location,
                                    fmt::format("{}.column_mapping", place.foreign),
                                    "does not name the columns of a question and an answer",
                                    "write {question: NAME, answer: NAME}");
  const auto add = [&](const char* field, const std::string& text) {
    Node value = plain_scalar(text, location);
    value.quoted = true;
    layer.add(find_row(fmt::format("{}.{}", place.fields, field)),
              fmt::format("{}.column_mapping", place.foreign), location, std::move(value));
  };
  add("prompt", prompt);
  add("completion", completion);
}

// Sets a key of the short form.
void set_key(LayerSettings& layer, const Place& place, const std::string& key,
             const SourceLocation& location, const Node& node) {
  const std::string fields(place.fields), spelling = fmt::format("{}.{}", place.native, key);
  const auto add = [&](const char* field, const Node& value) {
    layer.add(find_row(fields + "." + field), spelling, location, value);
  };
  for (const auto& format : enum_names(SampleFormat{}))
    if (key == format.name) {
      add("format", plain_scalar(key, location));
      return add(format.value == SampleFormat::mock ? "limit" : "files", node);
    }
  if (const SchemaRow* row = find_row(fields + "." + key))
    return layer.add(row, spelling, location, node);
  const std::string meant = nearest_key(fields + "." + key);
  layer.diagnostics.add_at(
      Severity::error, location, spelling, "there is no such key",
      meant.starts_with(fields)
          ? fmt::format("did you mean {}?", meant.substr(fields.size() + 1))
          : "write messages, prompt_completion, text, tokens or mock, and split, template, limit, "
            "prompt, completion, column; `mtrain explain dataset.train_samples` describes them");
}

}  // namespace

std::span<const Target> sample_targets() {
  static const std::vector<Target> targets = make_targets();
  return targets;
}

bool set_samples(LayerSettings& layer, const std::string& path, const SourceLocation& location,
                 const Node& node) {
  for (const Place& place : kPlaces) {
    if (path == fmt::format("{}.truncation", place.foreign)) {
      layer.add(find_row(fmt::format("{}.cut", place.fields)), path, location,
                plain_scalar(is_on(node) ? "true" : "false", location));
      return true;
    }
    if (path == fmt::format("{}.column_mapping", place.foreign) && node.kind == Node::Kind::map) {
      set_columns(layer, place, location, node);
      return true;
    }
    if (path == place.native && node.kind == Node::Kind::map) {
      for (size_t i = 0; i < node.keys.size(); ++i)
        set_key(layer, place, normalize_path(node.keys[i].name), node.keys[i].location,
                node.items[i]);
      return true;
    }
    if (path.starts_with(fmt::format("{}.", place.native))) {
      set_key(layer, place, path.substr(place.native.size() + 1), location, node);
      return true;
    }
  }
  return false;
}

}  // namespace mtrain::recipe
