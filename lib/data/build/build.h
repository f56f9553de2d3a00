// Text files to token files: what `mtrain data build` does.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace mtrain::data {

enum class InputFormat {
  automatic,
  text,
  jsonl
};  // automatic: *.jsonl and *.json are JSON lines, the rest is text

// How a text file divides into documents. Separators are dropped, lines keep their line feeds.
enum class DocumentSplit {
  file,        // the whole file is one
  blank_line,  // blocks between blank lines
  separator,   // blocks between lines that are exactly `separator`
};

enum class ValidationSplit {
  documents,  // each document by a coin that depends on the seed and its number alone
  tail,  // the end of the input, cut at a document or, where one file is one document, at a line
};

struct BuildOptions {
  std::vector<std::filesystem::path> inputs;  // files; a folder stands for the files in it, by name
  std::filesystem::path output;               // prefix of the .bin/.idx pair
  InputFormat format = InputFormat::automatic;
  std::string json_field = "text";
  DocumentSplit split = DocumentSplit::file;
  std::string separator = "%";
  bool append_eod = true;  // ends each document with the tokenizer's end-of-document id
  double validation_fraction =
      0;  // > 0 writes <output>_train and <output>_valid instead of <output>
  ValidationSplit validation_split = ValidationSplit::documents;
  uint64_t seed = 0;
  bool skip_bad_lines =
      false;        // counts JSON lines that cannot be used instead of stopping at the first
  int threads = 0;  // 0: one per core
  int64_t chunk_bytes =
      int64_t(1) << 20;  // what a thread works on at a time; the result does not depend on threads
};

struct BuildProgress {
  int64_t bytes_done = 0, bytes_total = 0, documents = 0, tokens = 0;
};

struct BuildResult {
  struct Part {
    std::filesystem::path prefix;
    int64_t documents = 0, tokens = 0;
  };
  std::vector<Part> parts;  // {all}, or {train, valid}
  int64_t bytes = 0, bad_lines = 0;
};

// Reads and writes as a stream: memory is bounded by threads * chunk_bytes and by the longest
// document that the tokenizer cannot cut (Tokenizer::safe_cut) or the longest JSON line. `progress`
// is called from one thread at a time, about once per chunk, and last with everything done; what it
// throws ends the build, and nothing is written. Throws UserError (inputs, options, a bad line with
// file:line) or RunError.
BuildResult build_dataset(const BuildOptions& options, const Tokenizer& tokenizer,
                          const std::function<void(const BuildProgress&)>& progress = {});

}  // namespace mtrain::data
