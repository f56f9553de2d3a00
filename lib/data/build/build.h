// Turns text files into token files, for `mtrain data build`.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"

namespace mtrain::data {

enum class InputFormat {
  automatic,  // *.jsonl and *.json are JSON lines, all other files are text
  text,
  jsonl,  // one JSON object per line
};

// How a text file divides into documents. Separators are dropped; lines keep their line feeds.
enum class DocumentSplit {
  file,        // the file is one document
  blank_line,  // blank lines separate documents
  separator,   // lines that are exactly BuildOptions::separator separate documents
};

// Which documents are held out for validation.
enum class ValidationSplit {
  documents,  // a random draw for each document, which depends only on the seed and its number
  tail,       // the end of the input, cut between documents; at a line if a file is one document
};

struct LineFault;

// Makes the tokens of JSON lines. Several threads call it at once.
class LineEncoder {
 public:
  virtual ~LineEncoder() = default;
  virtual bool masked() const = 0;  // false: every token counts as a label
  // Whether the line, counted from 1, is a part of the data.
  virtual bool wants(const std::filesystem::path& file, int64_t line) const = 0;
  // Appends the line's tokens, and whether each counts as a label. If the line cannot be used,
  // returns false and sets `fault`.
  virtual bool encode(std::string_view line, LineFault& fault, std::vector<int32_t>& tokens,
                      std::vector<uint8_t>& labels) const = 0;
};

struct BuildOptions {
  std::vector<std::filesystem::path> inputs;  // files, or folders: all files in one, sorted by name
  std::filesystem::path output;               // prefix of the .bin/.idx pair
  InputFormat format = InputFormat::automatic;
  std::string json_field = "text";
  // For supervised fine-tuning: a JSON line holds a prompt and its answer. The answer is encoded
  // separately and follows the prompt. A mask is written: only the tokens of answers and their ends
  // count as labels. Both empty: a line holds a text.
  std::string prompt_field, answer_field;
  // A JSON line holds a conversation, a list of messages. Its text is the template's, and only what
  // the assistant says counts as labels. The template writes BOS tokens and the ends of turns, so
  // none are added unless `bos` is `always` or append_eod is true.
  std::string messages_field;
  std::shared_ptr<const ChatTemplate> chat;  // not null with messages_field
  // Makes the tokens of JSON lines instead of the fields above.
  std::shared_ptr<const LineEncoder> lines;
  DocumentSplit split = DocumentSplit::file;
  std::string separator = "%";
  BeginOfText bos = BeginOfText::automatic;
  bool append_eod = true;  // ends each document with the tokenizer's end-of-document id
  // Above 0, <output>_train and <output>_valid are written instead of <output>.
  double validation_fraction = 0;
  ValidationSplit validation_split = ValidationSplit::documents;
  uint64_t seed = 0;
  // Counts the JSON lines that cannot be used, and does not stop at the first.
  bool skip_bad_lines = false;
  int threads = 0;  // 0: one per core
  // The input that a thread encodes at a time. Neither threads nor chunks change the files.
  int64_t chunk_bytes = int64_t(1) << 20;
};

struct BuildProgress {
  int64_t bytes_done = 0, bytes_total = 0, documents = 0, tokens = 0;
};

struct BuildResult {
  struct Part {
    std::filesystem::path prefix;
    int64_t documents = 0, tokens = 0;
    int64_t labels = 0;  // tokens that count as labels; all without a mask
  };
  std::vector<Part> parts;  // one, or {train, valid}
  int64_t bytes = 0, bad_lines = 0;
  int64_t without_token = 0;  // JSON lines whose text, or answer, has no token
};

// Returns the prefixes of the requested token files: one, or {train, valid}.
std::vector<std::filesystem::path> output_prefixes(const BuildOptions& options);

// Builds the token files of `options.inputs`. Memory is bounded by threads * chunk_bytes, and by
// the longest JSON line or the longest document that the tokenizer cannot cut
// (Tokenizer::safe_cut). `progress` is called after each chunk, by one thread at a time, and at the
// end with all bytes done. If it throws, the build ends and writes nothing. Throws UserError for
// wrong inputs or options and for a bad line (with file:line), else RunError.
BuildResult build_dataset(const BuildOptions& options, const Tokenizer& tokenizer,
                          const std::function<void(const BuildProgress&)>& progress = {});

}  // namespace mtrain::data
