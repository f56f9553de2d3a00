#include "storage/checked_file.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "storage/checkpoint_dir.h"
#include "storage/manifest.h"

namespace mtrain::storage {

namespace fs = std::filesystem;

namespace {

// Threads of a rank read neighbouring parts of a tensor at once.
constexpr size_t kKeptBlocks = 4;

// Returns the content of the .sums file by which the file is checked; empty if there is none.
std::string sums_of(const fs::path& file) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::error_code error;
  if (fs::exists(folder / kManifest, error) && is_ours(folder)) {
    const Manifest manifest = read_manifest(folder);
    const std::string name = file.filename().string();
    const bool listed = manifest.has_sums && manifest.sizes.contains(name) && name != kRecipeCopy;
    return listed ? checked_sums(folder, manifest, name) : "";
  }
  if (!fs::is_regular_file(sums_path(file), error)) return "";
  std::string text = read_file(sums_path(file));
  return is_sums_text(text) ? text : "";
}

}  // namespace

CheckedFile::CheckedFile(const fs::path& path) : file_(path) {
  const std::string text = sums_of(path);
  if (text.empty()) return;
  sums_.emplace(path, text);
  content_ = content_hash(text);
  if (file_.size() != sums_->bytes())
    throw damaged_file(
        path, fmt::format("it has {} bytes and was saved with {}", file_.size(), sums_->bytes()));
}

std::shared_ptr<CheckedFile::Block> CheckedFile::find_or_add(int64_t index) const {
  const std::scoped_lock lock(mutex_);
  const auto at = std::ranges::find(kept_, index, [](const auto& b) { return b->index; });
  std::shared_ptr<Block> block;
  if (at != kept_.end()) {
    block = *at;
    kept_.erase(at);
  } else {
    block = std::make_shared<Block>();
    block->index = index;
    if (kept_.size() == kKeptBlocks) {
      // The block used longest ago makes room. Its memory is used again unless a thread reads it.
      if (kept_.back().use_count() == 1) block->memory = std::move(kept_.back()->memory);
      kept_.pop_back();
    }
  }
  kept_.push_front(block);
  return block;
}

std::shared_ptr<CheckedFile::Block> CheckedFile::block(int64_t index, std::string_view what) const {
  auto block = find_or_add(index);
  const std::scoped_lock lock(block->reading);
  if (block->bytes == 0) {
    if (!block->memory) block->memory = std::make_unique_for_overwrite<std::byte[]>(kSumsBlock);
    const auto bytes = size_t(sums_->size_of(index));
    file_.read(index * kSumsBlock, bytes, block->memory.get(), what);
    sums_->check(index, {block->memory.get(), bytes});
    block->bytes = bytes;
  }
  return block;
}

void CheckedFile::read(int64_t at, size_t bytes, void* to, std::string_view what) const {
  if (!sums_) return file_.read(at, bytes, to, what);
  MT_CHECK(at >= 0 && at + int64_t(bytes) <= size(), "bytes {} + {} of {}", at, bytes, size());
  for (char* next = static_cast<char*>(to); bytes > 0;) {
    const auto from = block(at / kSumsBlock, what);
    const int64_t begin = at % kSumsBlock;
    const size_t n = std::min(bytes, from->bytes - size_t(begin));
    std::memcpy(next, from->memory.get() + begin, n);
    next += n, at += int64_t(n), bytes -= n;
  }
}

}  // namespace mtrain::storage
