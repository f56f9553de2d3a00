#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/log.h"
#include "data/dataset/content.h"
#include "data/dataset/indexed_dataset.h"

namespace mtrain::data {
namespace fs = std::filesystem;

namespace {

constexpr size_t kBufferBytes = size_t(1) << 18;

// Gathers small writes into larger ones.
class BufferedFile {
 public:
  explicit BufferedFile(const fs::path& path) : file_(path) { buffer_.reserve(kBufferBytes); }
  template <class T>
  void put(const T& value) {
    write(&value, sizeof value);
  }
  void write(const void* data, size_t bytes) {
    const char* p = static_cast<const char*>(data);
    if (buffer_.size() + bytes > kBufferBytes) flush();
    if (bytes > kBufferBytes)
      put_out(p, bytes);
    else
      buffer_.insert(buffer_.end(), p, p + bytes);
  }
  void flush() {
    put_out(buffer_.data(), buffer_.size());
    buffer_.clear();
  }
  void prepare() {  // writes the full file to the disk, under its temporary name
    flush();
    file_.prepare();
  }
  void commit() { file_.commit(); }
  std::string hash() const { return hash_.hex(); }  // of the bytes that have left the buffer

 private:
  void put_out(const char* data, size_t bytes) {
    file_.write(data, bytes);
    hash_.add(data, bytes);
  }

  AtomicFile file_;
  ContentHash hash_;
  std::vector<char> buffer_;
};

// A list of values on the disk. Its file is in the folder of the result and has no name; therefore
// nothing remains if the process dies.
template <class T>
class Spill {
 public:
  explicit Spill(const fs::path& beside) {
    std::string name = beside.string() + ".spill.XXXXXX";
    const int fd = ::mkstemp(name.data());
    if (fd < 0) fail("create a temporary file beside", beside);
    ::unlink(name.c_str());
    file_ = ::fdopen(fd, "w+b");
    if (!file_) {
      ::close(fd);
      fail("open a temporary file beside", beside);
    }
    beside_ = beside;
  }
  ~Spill() { std::fclose(file_); }
  Spill(const Spill&) = delete;

  void put(T value) {
    if (std::fwrite(&value, sizeof value, 1, file_) != 1)
      fail("write a temporary file beside", beside_);
    ++count_;
  }
  int64_t count() const { return count_; }
  template <class F>
  void for_each(F&& f) {
    if (std::fflush(file_) != 0 || std::fseek(file_, 0, SEEK_SET) != 0)
      fail("write a temporary file beside", beside_);
    T value;
    for (int64_t i = 0; i < count_; ++i) {
      if (std::fread(&value, sizeof value, 1, file_) != 1)
        fail("read a temporary file beside", beside_);
      f(value);
    }
  }

 private:
  [[noreturn]] static void fail(const char* what, const fs::path& beside) {
    const int code = errno;
    throw RunError(fmt::format("cannot {} {}: {}", what, beside.string(), std::strerror(code)),
                   code == ENOSPC ? "free some space or choose another folder" : "");
  }
  std::FILE* file_ = nullptr;
  fs::path beside_;
  int64_t count_ = 0;
};

}  // namespace

struct IndexedDatasetWriter::State {
  State(const fs::path& output, TokenType token_type, bool masked)
      : prefix(output),
        idx(idx_path(prefix)),
        mask(mask_path(prefix)),
        type(token_type),
        bin(bin_path(prefix)),
        index(idx),
        lengths(idx),
        documents(idx) {
    if (masked) labels.emplace(mask);
  }

  void end_sequence() {
    if (length == 0) return;
    lengths.put(int32_t(length));
    length = 0;
  }

  void append(std::span<const int32_t> added) {
    constexpr int64_t kLongest = std::numeric_limits<int32_t>::max();  // lengths have 32 bits
    const int32_t limit = type == TokenType::u16 ? 65535 : std::numeric_limits<int32_t>::max();
    for (const int32_t token : added)
      MT_CHECK(token >= 0 && token <= limit, "token {} does not fit the file's type", token);
    while (!added.empty()) {
      const size_t n = std::min(added.size(), size_t(kLongest - length));
      if (type == TokenType::u16) {
        narrow.assign(added.begin(), added.begin() + int64_t(n));
        bin.write(narrow.data(), 2 * n);
      } else {
        bin.write(added.data(), 4 * n);
      }
      added = added.subspan(n);
      tokens += int64_t(n);
      length += int64_t(n);
      if (length == kLongest) end_sequence();  // a longer document has several sequences
    }
  }

  fs::path prefix, idx, mask;
  TokenType type;
  BufferedFile bin, index;
  std::optional<BufferedFile> labels;
  Spill<int32_t> lengths;
  Spill<int64_t> documents;         // for each document, the number of the sequence after its last
  int64_t documented = 0;           // sequences of the documents that have ended
  int64_t tokens = 0, counted = 0;  // all, and those that count as labels
  int64_t length = 0;               // tokens of the open sequence
  std::vector<uint16_t> narrow;     // a buffer to convert ids to u16
  bool prepared = false;
};

IndexedDatasetWriter::IndexedDatasetWriter(const fs::path& prefix, TokenType type, bool masked) {
  MT_CHECK(type == TokenType::u16 || type == TokenType::i32, "writing token type {}", int(type));
  if (prefix.has_parent_path()) {
    std::error_code error;
    fs::create_directories(prefix.parent_path(), error);
    if (error)
      throw UserError(fmt::format("cannot create the folder {}: {}", prefix.parent_path().string(),
                                  error.message()));
  }
  for (const fs::path& path :
       {bin_path(prefix), idx_path(prefix), mask_path(prefix), hash_path(prefix)})
    remove_stale_temporaries(path);
  state_ = std::make_unique<State>(prefix, type, masked);
}

IndexedDatasetWriter::~IndexedDatasetWriter() = default;

void IndexedDatasetWriter::add_tokens(std::span<const int32_t> tokens) {
  if (state_->labels) return add_tokens(tokens, std::vector<uint8_t>(tokens.size(), 1));
  state_->counted += int64_t(tokens.size());
  state_->append(tokens);
}

void IndexedDatasetWriter::add_tokens(std::span<const int32_t> tokens,
                                      std::span<const uint8_t> labels) {
  State& s = *state_;
  MT_CHECK(s.labels && labels.size() == tokens.size(), "{} labels of {} tokens, {} a mask",
           labels.size(), tokens.size(), s.labels ? "with" : "without");
  for (const uint8_t label : labels) {
    MT_CHECK(label <= 1, "a label of {}", label);
    s.counted += label;
  }
  s.labels->write(labels.data(), labels.size());
  s.append(tokens);
}

void IndexedDatasetWriter::end_document() {
  State& s = *state_;
  s.end_sequence();
  if (s.lengths.count() == s.documented) return;
  s.documented = s.lengths.count();
  s.documents.put(s.documented);
}

void IndexedDatasetWriter::prepare() {
  State& s = *state_;
  end_document();
  BufferedFile& idx = s.index;
  for (char c : {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'}) idx.put(c);
  idx.put(uint64_t{1});
  idx.put(uint8_t(s.type));
  idx.put(uint64_t(s.lengths.count()));
  idx.put(uint64_t(s.documents.count() + 1));
  s.lengths.for_each([&](int32_t length) { idx.put(length); });
  int64_t pointer = 0;
  s.lengths.for_each([&](int32_t length) {
    idx.put(pointer);
    pointer += length * token_bytes(s.type);
  });
  idx.put(int64_t{0});
  s.documents.for_each([&](int64_t end) { idx.put(end); });
  idx.prepare();
  s.bin.prepare();
  if (s.labels) s.labels->prepare();
  s.prepared = true;
}

void IndexedDatasetWriter::finish() {
  State& s = *state_;
  if (!s.prepared) prepare();
  // The older hashes and index are removed first: they must never be beside the tokens or the mask
  // of another build. An error is ignored here: a file that cannot be removed cannot be replaced
  // either, and that throws.
  std::error_code error;
  fs::remove(hash_path(s.prefix), error);
  fs::remove(s.idx, error);
  s.bin.commit();
  if (s.labels)
    s.labels->commit();
  else if (fs::remove(s.mask, error); error)
    throw RunError(fmt::format("cannot remove the mask of the older tokens, {}: {}",
                               s.mask.string(), error.message()));
  s.index.commit();
  std::vector<std::pair<std::string, std::string>> full_hashes{{"bin", s.bin.hash()},
                                                               {"idx", s.index.hash()}};
  if (s.labels) full_hashes.emplace_back("mask", s.labels->hash());
  try {
    write_content(s.prefix, full_hashes);
  } catch (const Error& e) {
    log::warn(fmt::format(
        "{} is complete, but its hashes were not written, so runs must read all of it: {}",
        s.prefix.string(), e.what()));
  }
}

int64_t IndexedDatasetWriter::tokens() const { return state_->tokens; }
int64_t IndexedDatasetWriter::labels() const { return state_->counted; }
int64_t IndexedDatasetWriter::documents() const { return state_->documents.count(); }

}  // namespace mtrain::data
