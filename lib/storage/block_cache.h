// Blocks of 4 MiB of several files in memory. Threads that need the same block share it.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <utility>

#include "base/aligned_bytes.h"

namespace mtrain::storage {

// A file's number, and the number of a block in it.
struct BlockKey {
  int64_t file = 0, block = 0;
  bool operator==(const BlockKey&) const = default;
};

class BlockCache {
  struct Block;

 public:
  // Keeps the `kept` blocks that were used last. `direct`: files are read past the page cache.
  explicit BlockCache(size_t kept, bool direct = false) : direct_(direct), kept_(kept) {}

  bool direct() const { return direct_; }

  // While it lives, the block's memory is not used for another block.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept;
    Hold& operator=(Hold&& other) noexcept;
    ~Hold() { release(); }
    std::span<const std::byte> content() const;

   private:
    friend class BlockCache;
    Hold(BlockCache& cache, std::list<Block>::iterator block) : cache_(&cache), block_(block) {}
    void release();

    BlockCache* cache_ = nullptr;
    std::list<Block>::iterator block_;
  };

  enum class Use { now, ahead };
  // Writes a block's bytes to memory, which is aligned for direct reads. Returns their number.
  using Fill = std::function<size_t(std::byte* memory)>;
  // Returns the block, which `fill` reads unless it is in memory. Other threads that need it wait.
  // All of them throw what `fill` throws; a later call reads again.
  Hold get(const BlockKey& key, const Fill& fill, Use use = Use::now);

  // Sets what is called with each key for Use::now, before the block is looked for.
  void set_observer(std::function<void(const BlockKey&)> observer) {
    observer_ = std::move(observer);
  }
  // Keeps at least that many blocks from now on.
  void keep_at_least(size_t blocks);
  int64_t blocks_read() const;

 private:
  struct Block {
    enum class State { empty, reading, ready, failed };
    BlockKey key;
    AlignedBytes memory = {};  // of a full block
    State state = State::empty;
    size_t bytes = 0;
    std::exception_ptr failure = {};
    int holders = 0;
  };
  std::list<Block>::iterator find_or_add(const BlockKey& key);

  const bool direct_;
  std::function<void(const BlockKey&)> observer_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  size_t kept_;
  std::list<Block> blocks_;  // the one that was used last in front
  int64_t blocks_read_ = 0;
};

}  // namespace mtrain::storage
