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

CheckedFile::CheckedFile(const fs::path& path)
    : CheckedFile(path, sums_of(path), std::make_shared<BlockCache>(kKeptBlocks), 0) {}

CheckedFile::CheckedFile(const fs::path& path, const std::string& sums,
                         std::shared_ptr<BlockCache> cache, int64_t number)
    : file_(open_file(path)), cache_(std::move(cache)), number_(number) {
  if (sums.empty()) return;
  sums_.emplace(path, sums);
  content_ = content_hash(sums);
  if (file_.size() != sums_->bytes())
    throw damaged_file(
        path, fmt::format("it has {} bytes and was saved with {}", file_.size(), sums_->bytes()));
}

// Reads and checks a block. Returns its bytes.
size_t CheckedFile::fill(int64_t block, std::byte* memory, std::string_view what) const {
  const auto bytes = size_t(sums_->size_of(block));
  if (cache_->direct())
    file_.read_block(block * kSumsBlock, bytes, memory, what);
  else
    file_.read_at_once(block * kSumsBlock, bytes, memory, what);
  sums_->check(block, {memory, bytes});
  return bytes;
}

BlockCache::Hold CheckedFile::read_ahead(int64_t block) const {
  return cache_->get(
      {number_, block}, [&](std::byte* memory) { return fill(block, memory, "the bytes"); },
      BlockCache::Use::ahead);
}

void CheckedFile::read(int64_t at, size_t bytes, void* to, std::string_view what,
                       BlockCache::Use use) const {
  if (!sums_) return file_.read(at, bytes, to, what);
  MT_CHECK(at >= 0 && at + int64_t(bytes) <= size(), "bytes {} + {} of {}", at, bytes, size());
  for (char* next = static_cast<char*>(to); bytes > 0;) {
    const int64_t block = at / kSumsBlock;
    const BlockCache::Hold hold = cache_->get(
        {number_, block}, [&](std::byte* memory) { return fill(block, memory, what); }, use);
    const auto from = hold.content().subspan(size_t(at % kSumsBlock));
    const size_t n = std::min(bytes, from.size());
    std::memcpy(next, from.data(), n);
    next += n, at += int64_t(n), bytes -= n;
  }
}

}  // namespace mtrain::storage
