// Token files in Megatron's .bin/.idx format: <prefix>.bin holds the tokens of all sequences back
// to back, <prefix>.idx (little endian) says where each begins:
//   "MMIDIDX\0\0", u64 version = 1, u8 type code, u64 sequences, u64 document entries,
//   i32 lengths[sequences] (tokens), i64 pointers[sequences] (bytes), i64 documents[entries] (first
//   sequence of each document, and a last entry that is the number of sequences).
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/file.h"

namespace mtrain::data {

enum class TokenType : uint8_t {
  u8 = 1,
  i8 = 2,
  i16 = 3,
  i32 = 4,
  i64 = 5,
  u16 = 8
};  // codes of the format

int64_t token_bytes(TokenType type);
TokenType token_type_for(int64_t vocab_size);  // u16 below 65500 ids, else i32

std::filesystem::path bin_path(const std::filesystem::path& prefix);
std::filesystem::path idx_path(const std::filesystem::path& prefix);

// A checked view of an .idx file's bytes. Throws UserError that names `name` and the byte where it
// is wrong.
class TokenIndex {
 public:
  TokenIndex(std::span<const std::byte> idx, uint64_t bin_size, std::string name);

  TokenType type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return entries_ - 1; }
  int64_t tokens() const { return tokens_; }

  int64_t length(int64_t sequence) const;       // tokens
  int64_t first_token(int64_t sequence) const;  // position in the stream of all tokens
  int64_t document_begin(
      int64_t document) const;  // position of its first token; documents() gives tokens()
  int64_t document_of(int64_t token) const;  // the document that holds this position

 private:
  void check_header();
  void check_sequences(uint64_t bin_size);
  void check_documents();
  template <class T>
  T load(int64_t offset) const;

  std::span<const std::byte> idx_;
  std::string name_;
  TokenType type_{};
  int64_t sequences_ = 0, entries_ = 0, tokens_ = 0;
  int64_t lengths_at_ = 0, pointers_at_ = 0, documents_at_ = 0;  // byte offsets
};

// The two files, mapped: opening a terabyte reads the index only.
class IndexedDataset {
 public:
  explicit IndexedDataset(const std::filesystem::path& prefix);

  const TokenIndex& index() const { return index_; }
  int64_t tokens() const { return index_.tokens(); }
  const std::string& name() const { return name_; }  // the .bin's path

  // out[i] = token first + i of the stream of all documents. The range must lie inside the stream.
  void read(int64_t first, std::span<int32_t> out) const;

 private:
  std::string name_;
  MappedFile idx_, bin_;
  TokenIndex index_;
};

// Writes both files. Nothing is kept in memory but fixed buffers: the index is spilled to nameless
// temporary files, and both results appear under their names in finish() or not at all.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(const std::filesystem::path& prefix, TokenType type);
  ~IndexedDatasetWriter();

  void add_tokens(std::span<const int32_t> tokens);  // to the document under way
  void end_document();                               // one without tokens is dropped
  // Ends the document under way and brings all of both files onto the disk, under temporary names:
  // an older pair is untouched, and finish() after it needs no more space.
  void prepare();
  void finish();  // prepares where that has not been done, and renames

  int64_t tokens() const;
  int64_t documents() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mtrain::data
