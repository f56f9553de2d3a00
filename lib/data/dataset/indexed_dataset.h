// Token files in Megatron's .bin/.idx format: <prefix>.bin holds the concatenated tokens of all
// sequences, <prefix>.idx (little endian) has the start of each:
//   "MMIDIDX\0\0", u64 version = 1, u8 type code, u64 sequences, u64 document entries,
//   i32 lengths[sequences] (tokens), i64 pointers[sequences] (bytes), i64 documents[entries] (first
//   sequence of each document, and a last entry that is the number of sequences).
// There may also be <prefix>.mask, which Megatron does not have: a byte for each token of the .bin,
// 1 if the token counts as a label and 0 if it does not. Without it all tokens count. <prefix>.hash
// has hashes of the other files (dataset/content.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/document_share.h"
#include "base/file.h"

namespace mtrain::data {

// The values are the format's type codes.
enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

int64_t token_bytes(TokenType type);
TokenType token_type_for(int64_t vocab_size);  // u16 below 65500 ids, else i32

std::filesystem::path bin_path(const std::filesystem::path& prefix);
std::filesystem::path idx_path(const std::filesystem::path& prefix);
std::filesystem::path mask_path(const std::filesystem::path& prefix);
std::filesystem::path hash_path(const std::filesystem::path& prefix);

// A view of the bytes of an .idx file. The constructor checks them. It throws UserError, which has
// `name` and the byte at which the file is wrong. `bin_size` is the size of the .bin in bytes.
class TokenIndex {
 public:
  TokenIndex(std::span<const std::byte> idx, uint64_t bin_size, std::string name);

  TokenType type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }

  int64_t length(int64_t sequence) const;       // tokens
  int64_t first_token(int64_t sequence) const;  // position in the file's stream of all tokens

  // Keeps the documents [first, last). Documents and positions of tokens then count from the first
  // of them, those of sequences still in the file.
  void keep_documents(int64_t first, int64_t last);
  // How many documents and tokens of the file are before the first that is kept.
  int64_t documents_before() const { return documents_before_; }
  int64_t tokens_before() const { return tokens_before_; }

  // Returns the position of the document's first token. document_begin(documents()) is tokens().
  int64_t document_begin(int64_t document) const;
  int64_t document_of(int64_t token) const;  // the document that has this position

 private:
  void check_header();
  void check_sequences(uint64_t bin_size);
  void check_documents();
  template <class T>
  T load(int64_t offset) const;

  std::span<const std::byte> idx_;
  std::string name_;
  TokenType type_{};
  int64_t sequences_ = 0, entries_ = 0, documents_ = 0, tokens_ = 0;
  int64_t documents_before_ = 0, tokens_before_ = 0;
  int64_t lengths_at_ = 0, pointers_at_ = 0, documents_at_ = 0;  // byte offsets
};

// A pair of memory-mapped files: opening a terabyte of tokens reads only the index, and the mask if
// there is one. Throws UserError for files that do not fit each other.
class IndexedDataset {
 public:
  // Throws UserError, too, if the share has no document.
  explicit IndexedDataset(const std::filesystem::path& prefix, const DocumentShare& share = {});

  const TokenIndex& index() const { return index_; }
  int64_t tokens() const { return index_.tokens(); }
  // The path of the .bin, and the documents if not all of them are read.
  const std::string& name() const { return name_; }

  // Sets out[i] to token first + i of the stream of the documents, which must have that token. A
  // 64-bit id that does not fit becomes -1. Throws RunError if a file has become shorter.
  void read(int64_t first, std::span<int32_t> out) const;

  // Whether there may be tokens that do not count as labels.
  bool masked() const { return mask_.has_value(); }
  bool counts(int64_t token) const {
    return !mask_ || mask()[size_t(index_.tokens_before() + token)] != std::byte{0};
  }
  // Whether one of the tokens [first, first + count) counts as a label.
  bool any_counts(int64_t first, int64_t count) const;

 private:
  // A byte for each token of the file.
  std::span<const std::byte> mask() const { return mask_->bytes(); }
  void check_mask(const std::filesystem::path& path) const;
  void keep(const DocumentShare& share);

  // A mapped file, as it was when it was opened.
  struct Opened {
    std::filesystem::path path;
    uint64_t device = 0, inode = 0;
    int64_t bytes = 0;
  };
  static Opened look_at(const std::filesystem::path& path);
  void require_complete() const;

  std::string name_;
  std::vector<Opened> opened_;
  MappedFile idx_, bin_;
  std::optional<MappedFile> mask_;
  TokenIndex index_;
};

// Writes both files, and the mask if there is one. Its memory is of fixed size, since the parts of
// the index are kept in nameless temporary files. finish() gives all files their names, or none.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(const std::filesystem::path& prefix, TokenType type, bool masked = false);
  ~IndexedDatasetWriter();

  void add_tokens(std::span<const int32_t> tokens);  // appends them to the open document
  // The same for a masked file: `labels` is 1 for each token that counts as a label, else 0. Tokens
  // of the other function count.
  void add_tokens(std::span<const int32_t> tokens, std::span<const uint8_t> labels);
  void end_document();  // a document without tokens is dropped
  // Ends the open document and writes both files to the disk under temporary names. An older pair
  // stays unchanged, and finish() needs no more space.
  void prepare();
  void finish();  // calls prepare() if needed, and renames the files

  int64_t tokens() const;
  int64_t labels() const;  // the tokens that count as labels
  int64_t documents() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mtrain::data
