// Reads blocks before they are needed, in the order of their use, by several threads.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "storage/block_cache.h"

namespace mtrain::storage {

class ReadAhead {
 public:
  // Returns the next block that will be needed, each block once; nothing at the end. Called by one
  // thread at a time.
  using Next = std::function<std::optional<BlockKey>()>;
  // Reads a block. Several threads call it.
  using Load = std::function<BlockCache::Hold(const BlockKey&)>;

  // Keeps up to `blocks` blocks in memory that are not needed yet.
  ReadAhead(int threads, size_t blocks, Next next, Load load);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The block is needed now: those before it no longer are. Throws what `load` has thrown for it.
  // Other blocks have no effect.
  void needed(const BlockKey& key);

 private:
  struct Hash {
    size_t operator()(const BlockKey& key) const {
      return std::hash<int64_t>()(key.file * 1'000'003 + key.block);
    }
  };
  // A block that was read, or what prevented that.
  struct Loaded {
    BlockCache::Hold hold;
    std::exception_ptr failure;
  };
  void work();
  void pass(size_t index);

  const size_t blocks_;
  const Next next_;
  const Load load_;
  std::mutex order_mutex_;  // held while next_ is called

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::unordered_map<BlockKey, size_t, Hash> index_of_;  // of the blocks that next_ has returned
  std::map<size_t, Loaded> loaded_;                      // those that are not needed yet
  std::unordered_set<BlockKey, Hash> early_;             // that were needed before it returned them
  size_t position_ = 0, begun_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace mtrain::storage
