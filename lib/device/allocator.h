// Stream-ordered caching allocator. A buffer belongs to the stream it was allocated on: when its
// last owner drops it, the memory can at once be handed out again for later work of that stream
// (the queue's order protects it). If other streams touched it, it waits until home has waited for
// them, or until events recorded on them at that moment have passed. Memory returns to the system
// at the end, or when the system refuses more: then the streams are waited for, and segments that
// are free as a whole go back. Small buffers have segments of their own, so that none of them keeps
// a large block cut in two. What a graph's launches touch comes from a pool of its own, since they
// find the same addresses at every replay. Also what CUDA kernels need within a launch comes from
// here (ops/launch_scratch.h): no memory of a rank is beside it, but what libraries take for
// themselves.
#pragma once
#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "device/stream.h"

namespace mtrain {

// workspace: of kernels within a launch; none on the CPU, whose kernels have memory of their own.
enum class MemoryCategory : uint8_t { params, grads, optimizer, activations, buffers, workspace };
inline constexpr int kMemoryCategories = 6;
std::string_view category_name(MemoryCategory category);

struct MemoryUsage {
  int64_t current = 0, peak = 0;  // bytes
};

class Allocator;
struct Block;

// Segments that serve no one but the allocations made while the pool is open. When it ends, what is
// free goes to all others, and what is in use once it is dropped.
class MemoryPool {
 public:
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;
  int id() const { return id_; }

 private:
  friend class Allocator;
  MemoryPool(std::weak_ptr<Allocator> owner, int id) : owner_(std::move(owner)), id_(id) {}
  const std::weak_ptr<Allocator> owner_;
  const int id_;  // from 1
};

// One allocation. Owned through shared_ptr by tensors; launches mark the streams that touch it.
struct Storage {
  ~Storage();
  void* data = nullptr;
  int64_t bytes = 0;
  uint64_t serial = 0;  // tells apart allocations that reuse the same memory
  MemoryCategory category = MemoryCategory::buffers;
  Stream* home = nullptr;
  struct Touch {
    Stream* stream;
    uint64_t items;  // of the stream, with the last one that touched it
  };
  std::vector<Touch> others;           // streams besides home that touched it
  std::weak_ptr<Allocator> allocator;  // a buffer that outlives its device is no one's any more
  Block* block = nullptr;
  int pool = 0;  // that it was drawn from; 0: none
};
using Buffer = std::shared_ptr<Storage>;

class Allocator : public std::enable_shared_from_this<Allocator> {
 public:
  explicit Allocator(DeviceBackend& backend);
  ~Allocator();

  // Throws RunError, which tells the use of each category, where the system has no more memory.
  // Only the rank's host thread allocates, within a launch too, where that runs on this thread; any
  // thread may drop a buffer.
  Buffer allocate(int64_t bytes, MemoryCategory category, Stream& home);

  std::shared_ptr<MemoryPool> make_pool();
  // Allocations of the rank's host thread draw on `pool` as long as this lives.
  class Open {
   public:
    Open(Allocator& allocator, const MemoryPool& pool);
    ~Open() { allocator_.open_ = before_; }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    Allocator& allocator_;
    const int before_;
  };
  int open_pool() const { return open_; }  // its id; 0: none
  // Buffers of the pool that other streams still use when their owners have dropped them: their
  // home streams wait for those. Before a replay, which takes no notice of what it overwrites.
  void settle(const MemoryPool& pool);
  int64_t in_use(const MemoryPool& pool) const;  // bytes of its buffers that have owners
  // The streams that touched dropped buffers of the pool have joined their homes: those are free.
  void joined(const MemoryPool& pool);

  MemoryUsage usage(MemoryCategory category) const;
  MemoryUsage total() const;     // of what is handed out; peak is of the sum
  MemoryUsage reserved() const;  // taken from the system
  void reset_peaks();
  std::string peaks() const;  // "1.5 GiB: params 1.0 GiB, ...", workspace where there was any

 private:
  friend struct Storage;
  friend class MemoryPool;
  struct Use {
    Storage::Touch touch;
    Event passed;
  };
  struct Pending {
    Block* block;
    std::vector<Use> uses;
  };
  struct Segment {
    int64_t bytes;
    Block* first;
  };
  void release(Storage& storage) noexcept;
  void dissolve(int pool) noexcept;
  std::vector<Stream*> homes(const MemoryPool& pool) const;
  void collect();                            // frees pending blocks that are safe by now
  Block* find(int64_t bytes, Stream& home);  // null where no cached block is large enough
  Block* find_or_add(int64_t bytes, Stream& home);
  // Where the system has no more, cached memory goes back to it first; `lock` as release_cached().
  Block* find_or_make(int64_t bytes, Stream& home, std::unique_lock<std::mutex>& lock);
  void add_segment(int64_t bytes, Stream& home);
  void release_cached(Device& device,
                      std::unique_lock<std::mutex>& lock);  // unlocks while it waits for streams
  std::string use() const;                                  // of each category, and what is cached
  void put_back(Block* block);
  void account(MemoryCategory category, int64_t bytes);

  // Pool, stream, small or not, bytes, address: best fit first.
  using FreeKey = std::tuple<int, Stream*, bool, int64_t, void*>;
  static FreeKey key_of(const Block& block);
  DeviceBackend& backend_;
  mutable std::mutex mutex_;
  std::map<FreeKey, Block*> free_;
  std::list<Pending> pending_;
  std::map<void*, Segment> segments_;
  std::array<MemoryUsage, kMemoryCategories> usage_;
  MemoryUsage total_, reserved_;
  uint64_t serial_ = 0;
  std::map<int, int64_t> pool_use_;  // bytes, by the pool's id
  int pools_ = 0, open_ = 0;         // ids: the last one given, and of the pool that is open
};

}  // namespace mtrain
