// Rows of JSON lines that are samples of fine-tuning, and the cache of their tokens.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/build/build.h"
#include "data/samples/split.h"

namespace mtrain::data {

struct SampleSource {
  // tokens: ids in the .bin files of NanoGPT (nanogpt_tokens.h).
  enum class Format { messages, prompt_completion, text, tokens };
  Format format = Format::messages;
  // JSON lines, a JSON list of rows, or Parquet, folders of them, or names of data sets of the Hub.
  std::vector<std::string> files;
  Split split;
  std::string subset;                   // a folder of a data set; empty: the only one
  std::optional<int64_t> limit;         // rows after the first so many are left out
  std::optional<int64_t> shuffle_seed;  // the order in which split and limit count the rows
  std::string column;                   // of messages or of a text
  std::string prompt, completion;       // ColumnText
  // The chat template's file, folder or text; "tokenizer": that of the tokenizer; "auto": the same
  // if it has one. Empty: none, except that messages always need one.
  std::string chat_template;
  bool together = false;        // prompt and completion are encoded as one text
  bool answers_only = true;     // false: every token counts as a label
  bool last_answer = false;     // of a conversation, only the last answer is a label
  bool headers = false;         // the beginning of an answer, which a template writes, is a label
  bool plain_messages = false;  // read_conversation()'s
  bool end_of_text = false;     // a row ends with the tokenizer's end of text, a label
  std::string tokenizer;        // load_tokenizer()'s argument
  std::string name;             // the setting, in messages
};

// Returns the files that have the source's rows. Throws UserError if there are none, or if they are
// Parquet and this build does not read it.
std::vector<std::filesystem::path> files_of(const SampleSource& source);

struct TokenizedSamples {
  std::filesystem::path prefix;  // of the .bin, .idx and .mask
  bool built = false;            // by this call; otherwise they were there
  int64_t files = 0;             // of the source
};

// What tokenize_samples() calls while it works. Empty functions are not called.
struct TokenizeCalls {
  std::function<void(const BuildProgress&)> progress = {};  // of this call's own build
  std::function<void()> waits = {};  // once, when another process has begun to build
  // After each part of the work, and several times a second while another process builds.
  std::function<void()> alive = {};
};

// Returns the tokens of the source: those in `cache`, whose names are hashes of everything that
// decides them, or new ones. Several processes may call it at once: one builds, the others wait.
TokenizedSamples tokenize_samples(const SampleSource& source, const std::filesystem::path& cache,
                                  const TokenizeCalls& calls = {});

}  // namespace mtrain::data
