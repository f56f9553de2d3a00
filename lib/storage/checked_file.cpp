#include "storage/checked_file.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "storage/checkpoint_dir.h"
#include "storage/manifest.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

// Threads of a rank read neighbouring parts of a tensor at the same time.
constexpr size_t kKeptBlocks = 4;

fs::path folder_of_file(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

// Returns the content of the file's .sums file; empty if there is none.
std::string sums_of(const fs::path& file) {
  const fs::path folder = folder_of_file(file);
  std::error_code error;
  if (fs::exists(manifest_path(folder), error) && is_ours(folder)) {
    const Manifest manifest = read_manifest(folder);
    const std::string name = file.filename().string();
    const bool listed = manifest.has_sums && manifest.sizes.contains(name) && name != kRecipeCopy;
    return listed ? checked_sums(folder, manifest, name) : "";
  }
  if (!fs::is_regular_file(sums_path(file), error)) return "";
  std::string text = read_file(sums_path(file));
  return is_sums_text(text) ? text : "";
}

// Errors of opening a checkpoint's file are RunErrors.
RandomAccessFile open_file(const fs::path& path) {
  return is_ours(folder_of_file(path)) ? open_saved(path) : RandomAccessFile(path);
}

}  // namespace

CheckedFile::CheckedFile(const fs::path& path) : CheckedFile(path, sums_of(path)) {}

CheckedFile::CheckedFile(const fs::path& path, const std::string& sums) : file_(open_file(path)) {
  if (sums.empty()) return;
  sums_.emplace(path, sums);
  content_ = content_hash(sums);
  if (file_.size() != sums_->bytes())
    throw damaged_file(
        path, fmt::format("it has {} bytes and was saved with {}", file_.size(), sums_->bytes()));
}

class CheckedFile::Reader {
 public:
  Reader(const CheckedFile& file, int64_t index, std::string_view what)
      : file_(file), block_(open(index)) {
    try {
      fill(what);
    } catch (...) {
      close();
      throw;
    }
  }
  ~Reader() { close(); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  std::span<const std::byte> content() const { return {block_->memory.get(), block_->bytes}; }

 private:
  std::list<Block>::iterator open(int64_t index) {
    const std::scoped_lock lock(file_.mutex_);
    auto& kept = file_.kept_;
    auto at = std::ranges::find(kept, index, &Block::index);
    if (at == kept.end() && kept.size() >= kKeptBlocks) {
      // The memory of the least recently used block is reused.
      const auto oldest = std::ranges::find(kept.rbegin(), kept.rend(), 0, &Block::readers);
      if (oldest != kept.rend()) {
        at = std::prev(oldest.base());
        at->index = index;
        at->bytes = 0;
      }
    }
    if (at == kept.end())
      kept.emplace_front().index = index;
    else
      kept.splice(kept.begin(), kept, at);
    ++kept.front().readers;
    return kept.begin();
  }

  void fill(std::string_view what) {
    const std::scoped_lock lock(block_->reading);
    if (block_->bytes > 0) return;
    if (!block_->memory) block_->memory = std::make_unique_for_overwrite<std::byte[]>(kSumsBlock);
    const auto bytes = size_t(file_.sums_->size_of(block_->index));
    file_.file_.read(block_->index * kSumsBlock, bytes, block_->memory.get(), what);
    file_.sums_->check(block_->index, {block_->memory.get(), bytes});
    block_->bytes = bytes;
  }

  void close() {
    const std::scoped_lock lock(file_.mutex_);
    if (--block_->readers == 0 && file_.kept_.size() > kKeptBlocks) file_.kept_.erase(block_);
  }

  const CheckedFile& file_;
  const std::list<Block>::iterator block_;
};

void CheckedFile::read(int64_t at, size_t bytes, void* to, std::string_view what) const {
  if (!sums_) return file_.read(at, bytes, to, what);
  MT_CHECK(at >= 0 && at + int64_t(bytes) <= size(), "bytes {} + {} of {}", at, bytes, size());
  for (char* next = static_cast<char*>(to); bytes > 0;) {
    const Reader reader(*this, at / kSumsBlock, what);
    const auto from = reader.content().subspan(size_t(at % kSumsBlock));
    const size_t n = std::min(bytes, from.size());
    std::memcpy(next, from.data(), n);
    next += n, at += int64_t(n), bytes -= n;
  }
}

}  // namespace mtrain::storage
