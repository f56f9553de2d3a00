// Cuts input files into chunks that can be tokenized independently of each other. The chunks and
// their order depend only on the options.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/build/build.h"

namespace mtrain::data {

struct Chunk {
  int64_t number = 0;  // 0, 1, ...
  std::string text;
  std::filesystem::path file;
  InputFormat format = InputFormat::text;
  int64_t first_line = 1;     // the line of `file` in which `text` begins
  int64_t first_byte = 0;     // the byte of `file` at which `text` begins
  bool ends_document = true;  // false: this chunk's last document continues in the next chunk
  bool validation = false;    // in the part that ValidationSplit::tail holds out
  int64_t bytes_through = 0;  // input bytes up to the end of this chunk
};

class ChunkReader {
 public:
  ChunkReader(const BuildOptions& options, const Tokenizer& tokenizer);

  bool next(Chunk& chunk);  // returns false at the end of the input
  int64_t bytes_total() const { return bytes_total_; }

 private:
  void open(size_t input);
  // Reads until the buffer holds `bytes`; returns false if the file ends before.
  bool fill(size_t bytes);
  size_t find_cut(bool& ends_document);
  size_t find_tail_cut(size_t from, bool& ends_document);

  const BuildOptions& options_;
  const Tokenizer& tokenizer_;
  std::vector<std::filesystem::path> files_;
  std::vector<int64_t> sizes_;
  int64_t bytes_total_ = 0, bytes_done_ = 0, tail_begin_ = 0;  // input bytes
  size_t file_ = 0;
  std::optional<RandomAccessFile> input_;  // the open file
  int64_t input_at_ = 0;                   // how many of its bytes were read
  bool in_tail_ = false, mid_document_ = false;
  InputFormat format_ = InputFormat::text;
  int64_t line_ = 1, byte_ = 0, number_ = 0;
  std::string buffer_;
};

// Returns the documents of a chunk's text, divided by options.split. If the chunk does not end its
// document, the last one is incomplete.
std::vector<std::string_view> split_documents(std::string_view text, const BuildOptions& options);

}  // namespace mtrain::data
