// Cuts input files into chunks that can be tokenized apart from each other, in an order fixed by
// the options alone.
#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/build/build.h"

namespace mtrain::data {

struct Chunk {
  int64_t number = 0;  // 0, 1, ...
  std::string text;
  std::filesystem::path file;
  InputFormat format = InputFormat::text;
  int64_t first_line = 1;     // of `text` in `file`, counted from 1; JSON lines only
  bool ends_document = true;  // false: the next chunk goes on with this chunk's last document
  bool validation = false;    // behind the cut of ValidationSplit::tail
  int64_t bytes_through = 0;  // input bytes up to the end of this chunk
};

class ChunkReader {
 public:
  ChunkReader(const BuildOptions& options, const Tokenizer& tokenizer);

  bool next(Chunk& chunk);  // false at the end of the input
  int64_t bytes_total() const { return bytes_total_; }

 private:
  void open(size_t input);
  bool fill(size_t bytes);  // false when the file ends before the buffer holds so many
  size_t find_cut(bool& ends_document);
  size_t find_tail_cut(size_t from, bool& ends_document);

  const BuildOptions& options_;
  const Tokenizer& tokenizer_;
  std::vector<std::filesystem::path> files_;
  std::vector<int64_t> sizes_;
  int64_t bytes_total_ = 0, bytes_done_ = 0, tail_begin_ = 0;  // input bytes
  size_t file_ = 0;
  std::ifstream stream_;
  bool is_open_ = false, in_tail_ = false, mid_document_ = false;
  InputFormat format_ = InputFormat::text;
  int64_t line_ = 1, number_ = 0;
  std::string buffer_;
};

// The documents of a chunk of text: its blocks under options.split. The last one is unfinished if
// the chunk says so.
std::vector<std::string_view> split_documents(std::string_view text, const BuildOptions& options);

}  // namespace mtrain::data
