#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "data/indexed_dataset.h"

namespace mtrain {
namespace fs = std::filesystem;

namespace {

constexpr size_t kBufferBytes = size_t(1) << 18;

// Gathers small writes.
class BufferedFile {
 public:
  explicit BufferedFile(const fs::path& path) : file_(path) { buffer_.reserve(kBufferBytes); }
  template <class T>
  void put(const T& value) {
    const char* p = reinterpret_cast<const char*>(&value);
    if (buffer_.size() + sizeof value > kBufferBytes) flush();
    buffer_.insert(buffer_.end(), p, p + sizeof value);
  }
  void flush() {
    file_.write(buffer_.data(), buffer_.size());
    buffer_.clear();
  }
  void commit() {
    flush();
    file_.commit();
  }

 private:
  AtomicFile file_;
  std::vector<char> buffer_;
};

// Values that wait on disk: a file beside the result that has no name, so that nothing is left
// behind.
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
  State(const fs::path& prefix, TokenType token_type)
      : idx(idx_path(prefix)),
        type(token_type),
        bin(bin_path(prefix)),
        lengths(idx),
        documents(idx) {}

  void end_sequence() {
    if (length == 0) return;
    lengths.put(int32_t(length));
    length = 0;
  }

  fs::path idx;
  TokenType type;
  BufferedFile bin;
  Spill<int32_t> lengths;
  Spill<int64_t> documents;  // the sequence after each document's last
  int64_t documented = 0;    // sequences of the documents so far
  int64_t tokens = 0;
  int64_t length = 0;  // of the sequence under way
};

IndexedDatasetWriter::IndexedDatasetWriter(const fs::path& prefix, TokenType type) {
  MT_CHECK(type == TokenType::u16 || type == TokenType::i32, "writing token type {}", int(type));
  if (prefix.has_parent_path()) {
    std::error_code error;
    fs::create_directories(prefix.parent_path(), error);
    if (error)
      throw UserError(fmt::format("cannot create the folder {}: {}", prefix.parent_path().string(),
                                  error.message()));
  }
  state_ = std::make_unique<State>(prefix, type);
}

IndexedDatasetWriter::~IndexedDatasetWriter() = default;

void IndexedDatasetWriter::add_tokens(std::span<const int32_t> tokens) {
  State& s = *state_;
  const int32_t limit = s.type == TokenType::u16 ? 65535 : std::numeric_limits<int32_t>::max();
  for (int32_t token : tokens) {
    MT_CHECK(token >= 0 && token <= limit, "token {} does not fit the file's type", token);
    if (s.type == TokenType::u16)
      s.bin.put(uint16_t(token));
    else
      s.bin.put(token);
    // A length has 32 bits; a longer document is several sequences.
    if (++s.length == std::numeric_limits<int32_t>::max()) s.end_sequence();
  }
  s.tokens += int64_t(tokens.size());
}

void IndexedDatasetWriter::end_document() {
  State& s = *state_;
  s.end_sequence();
  if (s.lengths.count() == s.documented) return;
  s.documented = s.lengths.count();
  s.documents.put(s.documented);
}

void IndexedDatasetWriter::finish() {
  State& s = *state_;
  end_document();
  BufferedFile idx(s.idx);
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
  // An older pair goes in this order, so that no index is ever beside another's tokens.
  idx.flush();
  fs::remove(s.idx);
  s.bin.commit();
  idx.commit();
}

int64_t IndexedDatasetWriter::tokens() const { return state_->tokens; }
int64_t IndexedDatasetWriter::documents() const { return state_->documents.count(); }

}  // namespace mtrain
