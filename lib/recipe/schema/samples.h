// dataset.train_samples, dataset.validation_samples: rows of text that a run tokenizes itself.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "recipe/schema/field.h"

namespace mtrain::recipe {

enum class SampleFormat { messages, prompt_completion, text, tokens, mock };
constexpr auto enum_names(SampleFormat) {
  return std::array{EnumName{SampleFormat::messages, "messages"},
                    EnumName{SampleFormat::prompt_completion, "prompt_completion"},
                    EnumName{SampleFormat::text, "text"}, EnumName{SampleFormat::tokens, "tokens"},
                    EnumName{SampleFormat::mock, "mock"}};
}

struct SamplesConfig {
  std::optional<SampleFormat> format;
  std::vector<std::string> files;
  std::string split;
  std::optional<std::string> subset;
  std::optional<int64_t> limit, shuffle_seed;
  std::optional<std::string> column;
  std::string prompt = "{prompt}", completion = "{completion}";
  std::optional<std::string> chat_template;
  bool together = false;
  bool answers_only = true, last_answer_only = false, headers = false, plain_messages = false;
  Auto<bool> end_of_text;
  bool cut = true;
  std::optional<int64_t> vocab_size;

  static constexpr auto fields = std::tuple{
      Field{"format", &SamplesConfig::format,
            "messages: conversations, written by a chat template; prompt_completion; text; tokens: "
            "ids in the .bin files of NanoGPT; mock: random tokens, without a file"},
      Field{"files", &SamplesConfig::files,
            "JSON lines: a file, a folder or a list of them, or a data set's name on the Hugging "
            "Face "
            "Hub that is in the local cache"},
      Field{"split", &SamplesConfig::split,
            "part of the data: train[:1000], train[10%:], validation"},
      Field{"subset", &SamplesConfig::subset,
            "read only the files below a folder of this name in the data set"},
      Field{"limit",
            &SamplesConfig::limit,
            "use the first so many rows; of mock data: how many there are",
            {.unit = "rows", .min = 1, .max = 0x1p62}},
      Field{"shuffle_seed",
            &SamplesConfig::shuffle_seed,
            "shuffle the rows by this seed before split and limit choose",
            {.min = 0, .max = 0x1p63}},
      Field{"column", &SamplesConfig::column,
            "column of the messages, or of a text; none: messages, or text"},
      Field{"prompt", &SamplesConfig::prompt,
            "text of the prompt; {name} is a column, {a.b} a key in it, {a[0]} an item of it, "
            "{a|trim} without white space at the ends"},
      Field{"completion", &SamplesConfig::completion, "text of the answer, as `prompt`"},
      Field{"template",
            &SamplesConfig::chat_template,
            "chat template: a file, its text, `tokenizer`: that of the tokenizer, `auto`: the same "
            "if it has one; none: prompts have none, and messages that of the tokenizer",
            {.lines = true}},
      Field{"together", &SamplesConfig::together,
            "encode prompt and completion as one text; otherwise each by itself"},
      Field{"answers_only", &SamplesConfig::answers_only,
            "only answers count as labels; otherwise all tokens do"},
      Field{"last_answer_only", &SamplesConfig::last_answer_only,
            "of a conversation, only the last answer counts as a label"},
      Field{"headers", &SamplesConfig::headers,
            "what a chat template writes before an answer, such as the role, counts as a label, "
            "too; not if the template marks its answers"},
      Field{"plain_messages", &SamplesConfig::plain_messages,
            "a chat template gets each message's content as one text: the parts of a list are "
            "joined by spaces, and null is empty. It gets the arguments of a tool's call as JSON "
            "text. Otherwise it gets them as they are"},
      Field{"end_of_text", &SamplesConfig::end_of_text,
            "a row ends with the tokenizer's end of text, a label; auto: unless a chat template "
            "writes the row"},
      Field{
          "cut", &SamplesConfig::cut,
          "rows that are longer than dataset.seq_length are cut; otherwise seq_length grows to the "
          "longest row"},
      Field{"vocab_size",
            &SamplesConfig::vocab_size,
            "mock: tokens are below it; none: 1024, or the model's vocabulary if that is smaller",
            {.min = 1, .max = 1 << 30}}};

  bool on() const { return format.has_value(); }
};

}  // namespace mtrain::recipe
