#include "storage/file_sums.h"

#include <algorithm>
#include <charconv>

#include "base/file.h"
#include "base/math.h"
#include "base/strings.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMethod = "xxh3-128";

std::string first_line(int64_t bytes) {
  return fmt::format("{} {} {}\n", kMethod, kSumsBlock, bytes);
}

}  // namespace

fs::path sums_path(const fs::path& file) {
  fs::path path = file;
  path += ".sums";
  return path;
}

bool is_sums_text(std::string_view text) {
  return text.starts_with(fmt::format("{} {} ", kMethod, kSumsBlock));
}

std::string sums_text(int64_t bytes, std::string_view lines) {
  return first_line(bytes).append(lines);
}

void SumsBuilder::add(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const size_t n = std::min(bytes, size_t(kSumsBlock - in_block_));
    block_.add(next, n);
    next += n, bytes -= n;
    in_block_ += int64_t(n), bytes_ += int64_t(n);
    if (in_block_ == kSumsBlock) end_block();
  }
}

void SumsBuilder::end_block() {
  lines_ += block_.hex() + "\n";
  block_.reset();
  in_block_ = 0;
}

std::string SumsBuilder::text() {
  if (in_block_ > 0) end_block();
  return sums_text(bytes_, lines_);
}

std::string make_sums(const fs::path& file) {
  const RandomAccessFile from(file);
  std::vector<std::byte> piece(size_t(std::min(kSumsBlock, from.size())));
  SumsBuilder sums;
  for (int64_t at = 0; at < from.size(); at += kSumsBlock) {
    const auto n = size_t(std::min(kSumsBlock, from.size() - at));
    from.read(at, n, piece.data(), "the bytes");
    sums.add(piece.data(), n);
  }
  return sums.text();
}

FileSums::FileSums(fs::path file, std::string_view text) : file_(std::move(file)) {
  const auto fail = [&] { return damaged_file(sums_path(file_), "it has another format"); };
  const size_t end = std::min(text.find('\n'), text.size());
  const size_t space = text.substr(0, end).rfind(' ');
  if (space == std::string_view::npos) throw fail();
  const auto [last, error] = std::from_chars(text.data() + space + 1, text.data() + end, bytes_);
  if (error != std::errc() || bytes_ < 0 || !text.starts_with(first_line(bytes_))) throw fail();
  const int64_t line = int64_t(ContentHash::kDigits) + 1;
  const std::string_view lines = text.substr(end + 1);
  if (int64_t(lines.size()) % line != 0 ||
      int64_t(lines.size()) / line != ceil_div(bytes_, kSumsBlock))
    throw fail();
  for (size_t at = 0; at < lines.size(); at += size_t(line))
    blocks_.emplace_back(lines.substr(at, ContentHash::kDigits));
}

int64_t FileSums::size_of(int64_t block) const {
  return std::min(kSumsBlock, bytes_ - block * kSumsBlock);
}

void FileSums::check(int64_t block, std::span<const std::byte> content) const {
  if (ContentHash().add(content).hex() == blocks_[size_t(block)]) return;
  const int64_t first = block * kSumsBlock;
  throw damaged_file(
      file_,
      fmt::format("bytes {} to {} differ from those that were saved, according to {}", first,
                  first + size_of(block) - 1, sums_path(file_).filename().string()),
      block);
}

void FileSums::check_file() const {
  const RandomAccessFile from = open_saved(file_);
  if (from.size() != bytes_)
    throw damaged_file(file_,
                       fmt::format("it has {} bytes and was saved with {}", from.size(), bytes_));
  std::vector<std::byte> content(size_t(std::min(kSumsBlock, bytes_)));
  for (int64_t block = 0; block < blocks(); ++block) {
    const auto n = size_t(size_of(block));
    from.read(block * kSumsBlock, n, content.data(), "the bytes");
    check(block, {content.data(), n});
  }
}

namespace {
// Returns the checkpoint before the one that holds the file; "" if there is none. Ignores steps
// with a different number of digits.
std::string checkpoint_before(const fs::path& file) {
  const std::string own = file.parent_path().filename().string();
  std::string before;
  std::error_code error;
  fs::directory_iterator it(file.parent_path().parent_path(), error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("step-") && name.size() == own.size() && name < own &&
        name.find('.') == std::string::npos)
      before = std::max(before, name);
  }
  return before.empty() ? "" : (file.parent_path().parent_path() / before).string();
}
}  // namespace

DamagedFile damaged_file(const fs::path& file, const std::string& what, int64_t block) {
  const std::string before = checkpoint_before(file);
  return DamagedFile(
      file, block, fmt::format("{} is damaged: {}", file.string(), what),
      fmt::format(
          "copy it again from an intact source{}",
          before.empty()
              ? ""
              : ", or continue from the checkpoint before it with checkpoint.load=" + before));
}

RunError missing_file(const fs::path& file) { return damaged_file(file, "it is missing"); }

RandomAccessFile open_saved(const fs::path& file) {
  try {
    return RandomAccessFile(file);
  } catch (const UserError& e) {
    throw RunError(e.message(), e.hint());
  }
}

std::string read_saved(const fs::path& file) {
  try {
    return read_file(file);
  } catch (const UserError& e) {
    throw RunError(e.message(), e.hint());
  }
}

}  // namespace mtrain::storage
