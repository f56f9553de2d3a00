#include "data/build/chunk_reader.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/strings.h"
#include "data/build/input_check.h"
#include "data/tokenizer/utf8.h"

namespace mtrain::data {
namespace fs = std::filesystem;

namespace {

bool is_separator(std::string_view line, const BuildOptions& options) {
  switch (options.split) {
    case DocumentSplit::file: return false;
    case DocumentSplit::blank_line: return trim(line).empty();
    case DocumentSplit::separator: {
      while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
      return line == options.separator;
    }
  }
  return false;
}

// Calls f(begin, end) for each line, including its line feed, until f returns true.
template <class F>
void for_each_line(std::string_view text, size_t from, F&& f) {
  while (from < text.size()) {
    const size_t newline = text.find('\n', from);
    const size_t end = newline == std::string_view::npos ? text.size() : newline + 1;
    if (f(from, end)) return;
    from = end;
  }
}

// Returns the files of the inputs; a folder stands for the files in it, sorted by name.
std::vector<fs::path> expand(const std::vector<fs::path>& inputs) try {
  std::vector<fs::path> files;
  for (const fs::path& input : inputs) {
    if (!fs::exists(input)) throw UserError(fmt::format("no such input file: {}", input.string()));
    if (!fs::is_directory(input)) {
      files.push_back(input);
      continue;
    }
    std::vector<fs::path> inside;
    for (const auto& entry : fs::directory_iterator(input))
      if (entry.is_regular_file()) inside.push_back(entry.path());
    if (inside.empty()) throw UserError(fmt::format("the folder {} holds no file", input.string()));
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
} catch (const fs::filesystem_error& e) {
  throw UserError(fmt::format("cannot read {}: {}", e.path1().string(), e.code().message()));
}

}  // namespace

ChunkReader::ChunkReader(const BuildOptions& options, const Tokenizer& tokenizer)
    : options_(options), tokenizer_(tokenizer), files_(expand(options.inputs)) {
  if (files_.empty()) throw UserError("no input files", "name at least one text or .jsonl file");
  for (const fs::path& file : files_) {
    if (!fs::is_regular_file(file))
      throw UserError(fmt::format("{} is not a regular file", file.string()),
                      "write the stream to a file first");
    sizes_.push_back(int64_t(fs::file_size(file)));
    bytes_total_ += sizes_.back();
  }
  if (bytes_total_ == 0)
    throw UserError(fmt::format("the input is empty: {} has 0 bytes", files_[0].string()));
  tail_begin_ = bytes_total_;
  if (options.validation_fraction > 0 && options.validation_split == ValidationSplit::tail)
    tail_begin_ -=
        std::max<int64_t>(1, int64_t(double(bytes_total_) * options.validation_fraction));
}

void ChunkReader::open(size_t input) {
  const fs::path& file = files_[input];
  input_.emplace(file);
  input_at_ = 0;
  line_ = 1, byte_ = 0;
  fill(kSignatureBytes);
  refuse_other_format(file, std::string_view(buffer_).substr(0, kSignatureBytes));
  format_ = options_.format;
  if (format_ == InputFormat::automatic) {
    const std::string extension = to_lower(file.extension().string());
    format_ =
        extension == ".jsonl" || extension == ".json" ? InputFormat::jsonl : InputFormat::text;
  }
}

bool ChunkReader::fill(size_t bytes) {
  const size_t have = buffer_.size();
  if (have >= bytes) return true;
  const auto more = size_t(std::min(int64_t(bytes - have), input_->size() - input_at_));
  buffer_.resize(have + more);
  input_->read(input_at_, more, buffer_.data() + have, "the text");
  input_at_ += int64_t(more);
  return buffer_.size() == bytes;
}

// Returns where the chunk at the start of the buffer ends: at the end of a document if there is
// one, else at a place within a document that the tokenizer allows. Reads more until there is such
// a place.
size_t ChunkReader::find_cut(bool& ends_document) {
  ends_document = true;
  for (size_t want = size_t(options_.chunk_bytes);; want *= 2) {
    const bool more = fill(want);
    const int64_t to_tail = tail_begin_ - bytes_done_;
    if (!in_tail_ && to_tail < int64_t(buffer_.size()))
      return find_tail_cut(size_t(std::max<int64_t>(to_tail, 0)), ends_document);
    if (!more) return buffer_.size();
    if (format_ == InputFormat::jsonl) {
      const size_t newline = buffer_.rfind('\n');
      if (newline != std::string::npos) return newline + 1;
      continue;
    }
    size_t cut = 0;
    if (options_.split != DocumentSplit::file)
      for_each_line(buffer_, 0, [&](size_t begin, size_t end) {
        if (buffer_[end - 1] == '\n' &&
            is_separator(std::string_view(buffer_).substr(begin, end - begin), options_))
          cut = end;
        return false;
      });
    if (cut > 0) return cut;
    cut = tokenizer_.safe_cut(buffer_);
    // A cut must not hide a separator, so it is made only before a line that cannot be one.
    const bool at_text = cut > 0 && buffer_[cut - 1] == '\n' && std::isalnum(uint8_t(buffer_[cut]));
    if (options_.split != DocumentSplit::file &&
        !(at_text && options_.separator[0] != buffer_[cut]))
      cut = 0;
    if (cut > 0) {
      ends_document = false;
      return cut;
    }
  }
}

// Returns the end of the training part: the first end of a document at or after `from`, or of a
// line if a file is one document.
size_t ChunkReader::find_tail_cut(size_t from, bool& ends_document) {
  // In a longer line the cut is made between two characters.
  constexpr size_t kLongestLine = size_t(1) << 20;
  ends_document = true;
  in_tail_ = true;
  if (from == 0 && !mid_document_) return 0;
  const bool by_line = format_ == InputFormat::jsonl || options_.split == DocumentSplit::file;
  const bool bounded = format_ == InputFormat::text && options_.split == DocumentSplit::file;
  for (size_t want = std::max<size_t>(buffer_.size(), 1);; want *= 2) {
    const bool more = fill(want);
    size_t cut = 0;
    for_each_line(buffer_, 0, [&](size_t begin, size_t end) {
      const bool whole = buffer_[end - 1] == '\n';
      const bool boundary =
          by_line || is_separator(std::string_view(buffer_).substr(begin, end - begin), options_);
      if (whole && boundary && end >= std::max<size_t>(from, 1)) cut = end;
      return cut > 0;
    });
    if (cut > 0) return cut;
    if (!more) return buffer_.size();
    if (bounded && buffer_.size() > from + kLongestLine) {
      while (from < buffer_.size() && (uint8_t(buffer_[from]) & 0xC0) == 0x80) ++from;
      return from;
    }
  }
}

bool ChunkReader::next(Chunk& chunk) {
  while (true) {
    if (file_ == files_.size()) return false;
    if (!input_) open(file_);
    chunk.validation = in_tail_;
    const size_t cut = find_cut(chunk.ends_document);
    const bool file_ended = cut == buffer_.size() && !fill(cut + 1);
    if (cut > 0) {
      chunk.number = number_++;
      chunk.text.assign(buffer_, 0, cut);
      chunk.file = files_[file_];
      chunk.format = format_;
      chunk.first_line = line_;
      chunk.first_byte = byte_;
      line_ += std::count(chunk.text.begin(), chunk.text.end(), '\n');
      byte_ += int64_t(cut);
      buffer_.erase(0, cut);
      bytes_done_ += int64_t(cut);
      chunk.bytes_through = bytes_done_;
      if (file_ended) chunk.ends_document = true;
      mid_document_ = !chunk.ends_document;
    }
    if (file_ended) {
      ++file_;
      input_.reset();
    }
    if (cut > 0) return true;
  }
}

std::vector<std::string_view> split_documents(std::string_view text, const BuildOptions& options) {
  if (options.split == DocumentSplit::file) return {text};
  std::vector<std::string_view> documents;
  size_t first = 0;
  for_each_line(text, 0, [&](size_t begin, size_t end) {
    if (is_separator(text.substr(begin, end - begin), options)) {
      documents.push_back(text.substr(first, begin - first));
      first = end;
    }
    return false;
  });
  documents.push_back(text.substr(first));
  return documents;
}

}  // namespace mtrain::data
