// The stream-ordered caching allocator. A buffer belongs to its home, the stream it was allocated
// on: when its last owner drops it, the memory can at once be handed out again for later work of
// that stream, since the queue's order protects it. If other streams touched the buffer, its memory
// is handed out again once home has waited for them, or once events have passed that are recorded
// on them when the buffer is dropped. Memory returns to the system at the end, or when the system
// refuses more: then the host waits for the streams, and segments that are wholly free go back.
// Small buffers have segments of their own, so that none of them keeps a large block cut in two. A
// graph's launches have a pool of their own, since they find the same addresses at every replay.
// The allocator also gives CUDA kernels the memory that they need within a launch
// (ops/launch_workspace.h), so that it has all memory of a rank but what libraries take for
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

namespace mtrain::device {

// `workspace` is what kernels need within a launch. On the CPU there is none, since the kernels
// there have memory of their own.
enum class MemoryCategory : uint8_t { params, grads, optimizer, activations, buffers, workspace };
inline constexpr int kMemoryCategories = 6;
std::string_view category_name(MemoryCategory category);

struct MemoryUsage {
  int64_t current = 0, peak = 0;  // bytes
};

class Allocator;
struct Block;

// The segments of a pool serve only the allocations made while the pool is open. When the pool is
// destroyed, its free memory becomes everyone's, and its buffers' memory does when they are
// dropped.
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

// One allocation. Tensors own it through shared_ptr; launches mark the streams that touch it.
struct Storage {
  ~Storage();
  void* data = nullptr;
  int64_t bytes = 0;
  uint64_t serial = 0;  // tells apart allocations that reuse the same memory
  MemoryCategory category = MemoryCategory::buffers;
  Stream* home = nullptr;
  struct Touch {
    Stream* stream;
    uint64_t items;  // how many items the stream had with the last one that touched it
  };
  std::vector<Touch> others;           // streams besides home that touched it
  std::weak_ptr<Allocator> allocator;  // expired where the buffer outlives its device
  Block* block = nullptr;
  int pool = 0;  // id of the pool that it was drawn from; 0: none
};
using Buffer = std::shared_ptr<Storage>;

class Allocator : public std::enable_shared_from_this<Allocator> {
 public:
  explicit Allocator(DeviceBackend& backend);
  ~Allocator();

  // Throws RunError, which tells the use of each category, where the system has no more memory.
  // Only the rank's host thread may allocate, also within a launch whose work runs on that thread.
  // Any thread may drop a buffer.
  Buffer allocate(int64_t bytes, MemoryCategory category, Stream& home);

  std::shared_ptr<MemoryPool> make_pool();
  // Allocations of the rank's host thread draw on `pool` as long as an Open of it lives.
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
  // Makes home streams wait for the streams that still use dropped buffers of the pool. Needed
  // before a replay, which overwrites the pool's memory without looking.
  void settle(const MemoryPool& pool);
  int64_t in_use(const MemoryPool& pool) const;  // bytes of its buffers that have owners
  // Frees the dropped buffers of the pool at once; the streams that touched them have been waited
  // for by their homes.
  void joined(const MemoryPool& pool);

  MemoryUsage usage(MemoryCategory category) const;
  MemoryUsage total() const;     // all that is handed out; the peak is that of the sum
  MemoryUsage reserved() const;  // all that is taken from the system
  void reset_peaks();
  std::string peaks() const;  // "1.5 GiB: params 1.0 GiB, ...", with workspace where there was any

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
  // Gives cached memory back and tries again where the system has no more; `lock` is the one that
  // release_cached() unlocks.
  Block* find_or_make(int64_t bytes, Stream& home, std::unique_lock<std::mutex>& lock);
  void add_segment(int64_t bytes, Stream& home);
  // Unlocks `lock` while it waits for the device's streams.
  void release_cached(Device& device, std::unique_lock<std::mutex>& lock);
  std::string use() const;  // what each category has in use, and how much is cached
  void put_back(Block* block);
  void account(MemoryCategory category, int64_t bytes);

  // Pool, stream, small or not, bytes, address; in this order the first match is the best fit.
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
  int pools_ = 0, open_ = 0;         // the id given last, and the id of the open pool
};

}  // namespace mtrain::device
