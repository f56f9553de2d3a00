#include "data/dataset/indexed_dataset.h"

#include <sys/stat.h>
#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace mtrain::data {
namespace fs = std::filesystem;

namespace {
constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;
constexpr const char* kRebuild = "build the data set again with  mtrain data build";

fs::path with_suffix(fs::path prefix, const char* suffix) { return prefix += suffix; }
}  // namespace

int64_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8: return 1;
    case TokenType::i16:
    case TokenType::u16: return 2;
    case TokenType::i32: return 4;
    case TokenType::i64: return 8;
  }
  MT_CHECK(false, "token type {}", int(type));
  return 0;
}

TokenType token_type_for(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::u16 : TokenType::i32;
}

fs::path bin_path(const fs::path& prefix) { return with_suffix(prefix, ".bin"); }
fs::path idx_path(const fs::path& prefix) { return with_suffix(prefix, ".idx"); }
fs::path mask_path(const fs::path& prefix) { return with_suffix(prefix, ".mask"); }
fs::path hash_path(const fs::path& prefix) { return with_suffix(prefix, ".hash"); }

template <class T>
T TokenIndex::load(int64_t offset) const {
  T value;
  std::memcpy(&value, idx_.data() + offset, sizeof value);
  return value;
}

TokenIndex::TokenIndex(std::span<const std::byte> idx, uint64_t bin_size, std::string name)
    : idx_(idx), name_(std::move(name)) {
  check_header();
  check_sequences(bin_size);
  check_documents();
}

void TokenIndex::check_header() {
  const int64_t size = int64_t(idx_.size());
  if (size < kHeaderBytes)
    throw UserError(fmt::format("{} is truncated: it has {} bytes, but its header alone takes {}",
                                name_, size, kHeaderBytes),
                    kRebuild);
  if (std::memcmp(idx_.data(), kMagic, sizeof kMagic) != 0)
    throw UserError(
        fmt::format("{} is not an index of tokens: it does not begin with MMIDIDX", name_),
        "give the prefix of a .bin/.idx pair made by  mtrain data build  or Megatron");
  const auto version = load<uint64_t>(9);
  if (version != 1)
    throw UserError(
        fmt::format("{} has version {} (at byte 9), but only 1 is known", name_, version));
  const auto code = load<uint8_t>(17);
  constexpr uint8_t known[] = {1, 2, 3, 4, 5, 8};
  if (std::find(std::begin(known), std::end(known), code) == std::end(known))
    throw UserError(
        fmt::format("{} has the type code {} (at byte 17), which is not an integer type", name_,
                    code),
        "token files hold u8, i8, i16, u16, i32 or i64");
  type_ = TokenType(code);
  const auto sequences = load<uint64_t>(18), entries = load<uint64_t>(26);
  const uint64_t payload = uint64_t(size - kHeaderBytes);
  // Divides before it multiplies: absurd counts cannot overflow.
  const bool fits = sequences <= payload / 12 && entries <= payload / 8;
  if (!fits || sequences * 12 + entries * 8 != payload)
    throw UserError(
        fmt::format(
            "{} has {} bytes, but {} sequences and {} document entries (at bytes 18 and 26) {}",
            name_, size, sequences, entries,
            fits ? fmt::format("take {}", uint64_t(kHeaderBytes) + sequences * 12 + entries * 8)
                 : "take more"),
        fmt::format("the file is truncated or damaged; {}", kRebuild));
  sequences_ = int64_t(sequences);
  entries_ = int64_t(entries);
  lengths_at_ = kHeaderBytes;
  pointers_at_ = lengths_at_ + 4 * sequences_;
  documents_at_ = pointers_at_ + 8 * sequences_;
}

void TokenIndex::check_sequences(uint64_t bin_size) {
  const int64_t width = token_bytes(type_);
  int64_t expected = 0;  // bytes
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t length = load<int32_t>(lengths_at_ + 4 * i),
                  pointer = load<int64_t>(pointers_at_ + 8 * i);
    if (length < 0)
      throw UserError(fmt::format("{}: sequence {} has the length {} (at byte {})", name_, i,
                                  length, lengths_at_ + 4 * i),
                      kRebuild);
    if (pointer != expected)
      throw UserError(
          fmt::format(
              "{}: sequence {} starts at byte {} of the .bin (stored at byte {}), but the one "
              "before ends at {}",
              name_, i, pointer, pointers_at_ + 8 * i, expected),
          fmt::format("sequences must be contiguous; {}", kRebuild));
    expected += length * width;
    if (uint64_t(expected) > bin_size)
      throw UserError(
          fmt::format("{}: sequence {} of {} ends at byte {}, but the .bin has {} bytes", name_, i,
                      sequences_, expected, bin_size),
          fmt::format("the .bin is truncated or belongs to another .idx; {}", kRebuild));
  }
  if (uint64_t(expected) != bin_size)
    throw UserError(fmt::format("{}: its sequences take {} bytes, but the .bin has {}", name_,
                                expected, bin_size),
                    fmt::format("the .bin belongs to another .idx; {}", kRebuild));
  tokens_ = expected / width;
}

void TokenIndex::check_documents() {
  const auto at = [&](int64_t i) { return load<int64_t>(documents_at_ + 8 * i); };
  if (entries_ < 1 || at(0) != 0 || at(entries_ - 1) != sequences_)
    throw UserError(
        fmt::format(
            "{}: its {} document entries (at byte {}) do not run from 0 to the {} sequences", name_,
            entries_, documents_at_, sequences_),
        kRebuild);
  for (int64_t i = 1; i < entries_; ++i)
    if (at(i) < at(i - 1) || at(i) > sequences_)
      throw UserError(fmt::format("{}: document entry {} is {} (at byte {}) after {}", name_, i,
                                  at(i), documents_at_ + 8 * i, at(i - 1)),
                      kRebuild);
  documents_ = entries_ - 1;
}

void TokenIndex::keep_documents(int64_t first, int64_t last) {
  MT_CHECK(first >= 0 && first <= last && last <= documents_, "documents {} .. {} of {}", first,
           last, documents_);
  const int64_t begin = document_begin(first), end = document_begin(last);
  documents_before_ += first;
  documents_ = last - first;
  tokens_before_ += begin;
  tokens_ = end - begin;
}

int64_t TokenIndex::length(int64_t sequence) const {
  MT_CHECK(sequence >= 0 && sequence < sequences_, "sequence {} of {}", sequence, sequences_);
  return load<int32_t>(lengths_at_ + 4 * sequence);
}

int64_t TokenIndex::first_token(int64_t sequence) const {
  MT_CHECK(sequence >= 0 && sequence <= sequences_, "sequence {} of {}", sequence, sequences_);
  if (sequence == 0) return 0;
  return load<int64_t>(pointers_at_ + 8 * (sequence - 1)) / token_bytes(type_) +
         length(sequence - 1);
}

int64_t TokenIndex::document_begin(int64_t document) const {
  MT_CHECK(document >= 0 && document <= documents_, "document {} of {}", document, documents_);
  return first_token(load<int64_t>(documents_at_ + 8 * (documents_before_ + document))) -
         tokens_before_;
}

int64_t TokenIndex::document_of(int64_t token) const {
  MT_CHECK(token >= 0 && token < tokens_, "token {} of {}", token, tokens_);
  // Searches for the last document that begins at or before the token.
  int64_t low = 0, high = documents_;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

namespace {
template <class T>
void convert(const std::byte* from, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    if constexpr (sizeof(T) == 8) {
      out[i] = value < 0 || value > std::numeric_limits<int32_t>::max() ? -1 : int32_t(value);
    } else {
      out[i] = int32_t(value);  // NOLINT(bugprone-signed-char-misuse): i8 are numbers
    }
  }
}
}  // namespace

IndexedDataset::IndexedDataset(const fs::path& prefix, const DocumentShare& share)
    : name_(bin_path(prefix).string()),
      opened_{look_at(bin_path(prefix)), look_at(idx_path(prefix))},
      idx_(idx_path(prefix)),
      bin_(bin_path(prefix)),
      index_(idx_.bytes(), bin_.bytes().size(), idx_path(prefix).string()) {
  const fs::path mask = mask_path(prefix);
  if (fs::exists(mask)) {
    opened_.push_back(look_at(mask));
    mask_.emplace(mask);
    check_mask(mask);
  }
  keep(share);
}

void IndexedDataset::keep(const DocumentShare& share) {
  const int64_t count = index_.documents();
  const auto [first, last] = share.range(count);
  if (first == 0 && last == count) return;
  if (first >= last)
    throw UserError(fmt::format("{} has {} documents: the share from {:.6g} % to {:.6g} % has none",
                                name_, count, 100 * share.begin, 100 * share.end),
                    "use a larger share in dataset.split, or a larger data set");
  index_.keep_documents(first, last);
  name_ += fmt::format(" (documents {} to {})", first, last - 1);
}

IndexedDataset::Opened IndexedDataset::look_at(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};  // opening it reports the error
  return {path, info.st_dev, info.st_ino, info.st_size};
}

// After a file is shortened, the rest of its last page reads as zeros, without a signal.
void IndexedDataset::require_complete() const {
  for (const Opened& file : opened_) {
    struct stat now {};
    // Another file under this name does not change the mapped one.
    if (::stat(file.path.c_str(), &now) != 0 || now.st_dev != file.device ||
        now.st_ino != file.inode || now.st_size >= file.bytes)
      continue;
    throw RunError(fmt::format("{} has become shorter while it was in use: it has {} bytes, and "
                               "had {} when it was opened",
                               file.path.string(), now.st_size, file.bytes),
                   kRebuild);
  }
}

void IndexedDataset::check_mask(const fs::path& path) const {
  if (int64_t(mask().size()) != tokens())
    throw UserError(fmt::format("{} has {} bytes, but {} has {} tokens", path.string(),
                                mask().size(), name_, tokens()),
                    fmt::format("the mask belongs to other tokens; {}", kRebuild));
  for (size_t i = 0; i < mask().size(); ++i)
    if (uint8_t(mask()[i]) > 1)
      throw UserError(
          fmt::format("{}: byte {} is {}, but must be 0 or 1", path.string(), i, int(mask()[i])),
          kRebuild);
}

bool IndexedDataset::any_counts(int64_t first, int64_t count) const {
  if (!mask_ || count == 0) return count > 0;
  return std::memchr(mask().data() + index_.tokens_before() + first, 1, size_t(count)) != nullptr;
}

void IndexedDataset::read(int64_t first, std::span<int32_t> out) const {
  MT_CHECK(first >= 0 && first + int64_t(out.size()) <= tokens(), "tokens {} .. {} of {}", first,
           first + int64_t(out.size()), tokens());
  const std::byte* from =
      bin_.bytes().data() + (index_.tokens_before() + first) * token_bytes(index_.type());
  require_complete();  // before: data after the end cannot be read
  switch (index_.type()) {
    case TokenType::u8: convert<uint8_t>(from, out); break;
    case TokenType::i8: convert<int8_t>(from, out); break;
    case TokenType::i16: convert<int16_t>(from, out); break;
    case TokenType::u16: convert<uint16_t>(from, out); break;
    case TokenType::i32: convert<int32_t>(from, out); break;
    case TokenType::i64: convert<int64_t>(from, out); break;
  }
  require_complete();  // after: the data still existed when it was read
}

}  // namespace mtrain::data
