// Stream-ordered caching allocator. A buffer belongs to the stream it was allocated on: when its
// last owner drops it, the memory can at once be handed out again for later work of that stream
// (the queue's order protects it). If other streams touched it, it waits until home has waited for
// them, or until events recorded on them at that moment have passed. Memory returns to the system
// at the end, or when the system refuses more: then the streams are waited for, and segments that
// are free as a whole go back. Small buffers have segments of their own, so that none of them keeps
// a large block cut in two.
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

enum class MemoryCategory : uint8_t { params, grads, optimizer, activations, buffers };
inline constexpr int kMemoryCategories = 5;
std::string_view category_name(MemoryCategory category);

struct MemoryUsage {
  int64_t current = 0, peak = 0;  // bytes
};

class Allocator;
struct Block;

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
};
using Buffer = std::shared_ptr<Storage>;

class Allocator : public std::enable_shared_from_this<Allocator> {
 public:
  explicit Allocator(DeviceBackend& backend);
  ~Allocator();

  // Throws RunError, which tells the use of each category, where the system has no more memory.
  // Only the rank's host thread allocates; any thread may drop a buffer.
  Buffer allocate(int64_t bytes, MemoryCategory category, Stream& home);

  MemoryUsage usage(MemoryCategory category) const;
  MemoryUsage total() const;     // of what is handed out; peak is of the sum
  MemoryUsage reserved() const;  // taken from the system
  void reset_peaks();

 private:
  friend struct Storage;
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
  void collect();                            // frees pending blocks that are safe by now
  Block* find(int64_t bytes, Stream& home);  // null where no cached block is large enough
  Block* find_or_add(int64_t bytes, Stream& home);
  void add_segment(int64_t bytes, Stream& home);
  void release_cached(Device& device,
                      std::unique_lock<std::mutex>& lock);  // unlocks while it waits for streams
  std::string use() const;                                  // of each category, and what is cached
  void put_back(Block* block);
  void account(MemoryCategory category, int64_t bytes);

  // Stream, pool, bytes, address: best fit first.
  using FreeKey = std::tuple<Stream*, bool, int64_t, void*>;
  static FreeKey key_of(const Block& block);
  DeviceBackend& backend_;
  mutable std::mutex mutex_;
  std::map<FreeKey, Block*> free_;
  std::list<Pending> pending_;
  std::map<void*, Segment> segments_;
  std::array<MemoryUsage, kMemoryCategories> usage_;
  MemoryUsage total_, reserved_;
  uint64_t serial_ = 0;
};

}  // namespace mtrain
