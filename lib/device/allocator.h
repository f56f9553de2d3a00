// The stream-ordered caching allocator.
//
// A buffer belongs to its home, the stream that it was allocated on. When its last owner drops it,
// the memory can be reused immediately for later work of that stream, since the queue's order
// protects it. If other streams touched the buffer, the allocator records an event on each of them
// when the buffer is dropped. The memory is reused once home has waited for those streams, or once
// the events have passed.
//
// The allocator takes segments from the system and splits them into blocks. Segments return to the
// system when the allocator is destroyed, or when the system refuses more: the host then waits for
// the streams and returns segments that are completely free. Small buffers have segments of their
// own: none of them can split a large block.
//
// A graph's launches have a pool of their own, since they use the same addresses at every replay.
// CUDA kernels allocate the memory that they need within a launch here, too
// (ops/launch_workspace.h). The allocator therefore counts all memory of a rank except that of
// libraries.
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

#include "base/span.h"
#include "device/stream.h"

namespace mtrain::device {

// `workspace` is what CUDA kernels need within a launch. CPU kernels keep memory of their own
// (kernels/cpu/scratch.h), which is not counted. category_name() has the names.
enum class MemoryCategory : uint8_t { params, grads, optimizer, activations, buffers, workspace };
inline constexpr int kMemoryCategories = 6;
std::string_view category_name(MemoryCategory category);

struct MemoryUsage {
  int64_t current = 0, peak = 0;  // bytes
};

class Allocator;
struct Block;

// The segments of a pool serve only the allocations that are made while the pool is open. When the
// pool is destroyed, its free memory becomes available to all allocations; the memory of its
// buffers follows when they are dropped.
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
struct Storage : MemoryOwner, std::enable_shared_from_this<Storage> {
  ~Storage();
  void* data = nullptr;
  int64_t bytes = 0;
  uint64_t serial = 0;  // distinguishes allocations that reuse the same memory
  MemoryCategory category = MemoryCategory::buffers;
  Stream* home = nullptr;
  struct Touch {
    Stream* stream;
    uint64_t items;  // number of the stream's last item that touched it
  };
  std::vector<Touch> others;           // streams other than home that touched it
  std::weak_ptr<Allocator> allocator;  // expired if the buffer outlives its device
  Block* block = nullptr;              // null: the memory was adopted
  int pool = 0;                        // id of the pool that it was drawn from; 0: none
};
using Buffer = std::shared_ptr<Storage>;

class Allocator : public std::enable_shared_from_this<Allocator> {
 public:
  explicit Allocator(DeviceBackend& backend);
  ~Allocator();

  // Throws RunError, whose message lists the use of each category, if the system has no more
  // memory. Only the rank's host thread may allocate, also within a launch whose work runs on that
  // thread. Any thread may drop a buffer.
  Buffer allocate(int64_t bytes, MemoryCategory category, Stream& home);

  // Returns a buffer in memory from elsewhere, and counts it. The memory serves no other buffer,
  // and its owner is dropped when the allocator ends, after all streams have.
  Buffer adopt(std::shared_ptr<void> memory, int64_t bytes, MemoryCategory category, Stream& home);

  std::shared_ptr<MemoryPool> make_pool();
  // While an Open of `pool` lives, allocations of the rank's host thread come from it. Without a
  // pool, they come from memory that belongs to none.
  class Open {
   public:
    Open(Allocator& allocator, const MemoryPool& pool);
    explicit Open(Allocator& allocator);
    ~Open() { allocator_.open_ = before_; }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    Allocator& allocator_;
    const int before_;
  };
  int open_pool() const { return open_; }  // the id of the open pool; 0: none
  // Makes the pool's home streams wait for the streams that still use its dropped buffers, and
  // frees these buffers. It is needed before a replay, which overwrites the pool's memory
  // unconditionally.
  void await_users(const MemoryPool& pool);
  int64_t in_use(const MemoryPool& pool) const;  // bytes of its buffers that have owners
  // Frees the dropped buffers of the pool immediately. The caller has made their home streams wait
  // for the streams that touched them.
  void free_dropped(const MemoryPool& pool);

  MemoryUsage usage(MemoryCategory category) const;
  MemoryUsage total() const;     // of all categories; its peak is the peak of the sum
  MemoryUsage reserved() const;  // memory taken from the system
  std::string peaks() const;     // "1.5 GiB: params 1.0 GiB, ..."; workspace only if there was any

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
  void dissolve(int pool) noexcept;  // makes the memory of a destroyed pool available to all
  std::vector<Stream*> homes(const MemoryPool& pool) const;
  void collect();                            // frees pending blocks that no stream uses any more
  Block* find(int64_t bytes, Stream& home);  // null if no cached block is large enough
  Block* find_or_add(int64_t bytes, Stream& home);
  // Calls find_or_add(). If the system has no more memory, gives cached memory back and tries
  // again. release_cached() unlocks `lock`.
  Block* find_or_make(int64_t bytes, Stream& home, std::unique_lock<std::mutex>& lock);
  void add_segment(int64_t bytes, Stream& home);
  // Returns completely free segments to the system. Unlocks `lock` while it waits for the device's
  // streams.
  void release_cached(Device& device, std::unique_lock<std::mutex>& lock);
  std::string use() const;      // the memory in use by each category, and the cached memory
  void put_back(Block* block);  // makes a block free, and merges it with free neighbours
  void account(MemoryCategory category, int64_t bytes);

  // Pool, home stream, small or not, bytes, address. In this order the first match is the best fit.
  using FreeKey = std::tuple<int, Stream*, bool, int64_t, void*>;
  static FreeKey key_of(const Block& block);
  DeviceBackend& backend_;
  mutable std::mutex mutex_;
  std::map<FreeKey, Block*> free_;
  std::list<Pending> pending_;
  std::map<void*, Segment> segments_;
  std::vector<std::shared_ptr<void>> adopted_;
  std::array<MemoryUsage, kMemoryCategories> usage_;
  MemoryUsage total_, reserved_;
  uint64_t serial_ = 0;
  std::map<int, int64_t> pool_use_;  // bytes, by the pool's id
  int pools_ = 0, open_ = 0;         // the latest pool's id; the open pool's id
};

}  // namespace mtrain::device
