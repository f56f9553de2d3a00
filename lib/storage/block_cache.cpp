#include "storage/block_cache.h"

#include <algorithm>

#include "storage/file_sums.h"

namespace mtrain::storage {

BlockCache::Hold::Hold(Hold&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)), block_(other.block_) {}

BlockCache::Hold& BlockCache::Hold::operator=(Hold&& other) noexcept {
  if (this == &other) return *this;
  release();
  cache_ = std::exchange(other.cache_, nullptr);
  block_ = other.block_;
  return *this;
}

std::span<const std::byte> BlockCache::Hold::content() const {
  return {block_->memory.get(), block_->bytes};
}

void BlockCache::Hold::release() {
  if (!cache_) return;
  const std::scoped_lock lock(cache_->mutex_);
  --block_->holders;
  const bool surplus = cache_->blocks_.size() > cache_->kept_;
  if (block_->holders == 0 && (surplus || block_->state == Block::State::failed))
    cache_->blocks_.erase(block_);
  cache_ = nullptr;
}

// Returns the block with this key in front of the list. Call it with the mutex held.
std::list<BlockCache::Block>::iterator BlockCache::find_or_add(const BlockKey& key) {
  auto at = std::ranges::find_if(
      blocks_, [&](const Block& b) { return b.key == key && b.state != Block::State::failed; });
  if (at == blocks_.end() && blocks_.size() >= kept_) {
    // The memory of the least recently used block is reused.
    const auto oldest = std::ranges::find(blocks_.rbegin(), blocks_.rend(), 0, &Block::holders);
    if (oldest != blocks_.rend()) {
      at = std::prev(oldest.base());
      at->key = key, at->bytes = 0;
      at->state = Block::State::empty, at->failure = {};
    }
  }
  if (at == blocks_.end())
    blocks_.emplace_front().key = key;
  else
    blocks_.splice(blocks_.begin(), blocks_, at);
  return blocks_.begin();
}

BlockCache::Hold BlockCache::get(const BlockKey& key, const Fill& fill, Use use) {
  if (use == Use::now && observer_) observer_(key);
  std::unique_lock lock(mutex_);
  const auto block = find_or_add(key);
  ++block->holders;
  lock.unlock();
  Hold hold(*this, block);
  lock.lock();
  changed_.wait(lock, [&] { return block->state != Block::State::reading; });
  if (block->state == Block::State::empty) {
    block->state = Block::State::reading;
    ++blocks_read_;
    lock.unlock();
    size_t bytes = 0;
    std::exception_ptr failure;
    try {
      if (!block->memory) block->memory = aligned_bytes(size_t(kSumsBlock));
      bytes = fill(block->memory.get());
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    block->bytes = bytes, block->failure = failure;
    block->state = failure ? Block::State::failed : Block::State::ready;
    changed_.notify_all();
  }
  const std::exception_ptr failure = block->failure;
  lock.unlock();  // before the block is released
  if (failure) std::rethrow_exception(failure);
  return hold;
}

void BlockCache::keep_at_least(size_t blocks) {
  const std::scoped_lock lock(mutex_);
  kept_ = std::max(kept_, blocks);
}

int64_t BlockCache::blocks_read() const {
  const std::scoped_lock lock(mutex_);
  return blocks_read_;
}

}  // namespace mtrain::storage
