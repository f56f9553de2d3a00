#include "device/allocator.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "device/backend.h"

namespace mtrain {

namespace {
constexpr int64_t kGranule = 512;               // bytes; also the alignment of every buffer
constexpr int64_t kSmallSegment = 16ll << 20;   // small buffers share segments of this size
constexpr int64_t kSegmentGranule = 2ll << 20;  // a huge page
}  // namespace

// A piece of a segment; neighbours in address order are linked so that free ones merge again.
struct Block {
  char* data;
  int64_t bytes;
  Stream* home;
  bool free = true;
  Block *previous = nullptr, *next = nullptr;
};

struct Allocator::Pending {
  Block* block;
  std::vector<Event> events;
};

std::string_view category_name(MemoryCategory category) {
  constexpr std::string_view names[] = {"params", "grads", "optimizer", "activations", "buffers"};
  return names[int(category)];
}

Storage::~Storage() {
  if (const auto owner = allocator.lock()) owner->release(*this);
}

Allocator::Allocator(DeviceBackend& backend) : backend_(backend) {}

// The device has drained its streams. Buffers that outlive it lose their memory here, and know it.
Allocator::~Allocator() {
  for (auto& [memory, segment] : segments_) {
    for (Block* b = segment.first; b != nullptr;) delete std::exchange(b, b->next);
    backend_.release(memory, segment.bytes);
  }
}

Buffer Allocator::allocate(int64_t bytes, MemoryCategory category, Stream& home) {
  MT_CHECK(bytes >= 0, "{} bytes", bytes);
  auto storage = std::make_shared<Storage>();
  storage->category = category;
  storage->home = &home;
  if (bytes == 0) return storage;
  const int64_t rounded = round_up(bytes, kGranule);
  std::lock_guard lock(mutex_);
  collect();
  Block* block = find(rounded, home);
  if (!block) {
    add_segment(rounded, home);
    block = find(rounded, home);
  }
  storage->data = block->data;
  storage->bytes = block->bytes;
  storage->serial = ++serial_;
  storage->allocator = weak_from_this();
  storage->block = block;
  account(category, block->bytes);
  return storage;
}

Block* Allocator::find(int64_t bytes, Stream& home) {
  const auto it = free_.lower_bound({&home, bytes, nullptr});
  if (it == free_.end() || std::get<0>(it->first) != &home) return nullptr;
  Block* block = it->second;
  free_.erase(it);
  block->free = false;
  if (block->bytes > bytes) {
    auto* rest = new Block{block->data + bytes, block->bytes - bytes, block->home};
    rest->previous = block;
    rest->next = block->next;
    if (rest->next) rest->next->previous = rest;
    block->next = rest;
    block->bytes = bytes;
    free_[{rest->home, rest->bytes, rest->data}] = rest;
  }
  return block;
}

void Allocator::add_segment(int64_t bytes, Stream& home) {
  const int64_t size =
      bytes <= kSmallSegment / 4 ? kSmallSegment : round_up(bytes, kSegmentGranule);
  auto* memory = static_cast<char*>(backend_.allocate(size));
  reserved_.current += size;
  reserved_.peak = std::max(reserved_.peak, reserved_.current);
  auto* block = new Block{memory, size, &home};
  segments_[memory] = {size, block};
  free_[{&home, size, memory}] = block;
}

void Allocator::release(Storage& storage) {
  std::lock_guard lock(mutex_);
  account(storage.category, -storage.bytes);
  if (storage.others.empty()) return put_back(storage.block);
  auto pending = std::make_unique<Pending>();
  pending->block = storage.block;
  for (Stream* s : storage.others) pending->events.push_back(s->record());
  pending_.push_back(std::move(pending));
}

void Allocator::collect() {
  std::erase_if(pending_, [&](const std::unique_ptr<Pending>& p) {
    if (!std::ranges::all_of(p->events, [](const Event& e) { return e.ready(); })) return false;
    for (const Event& e : p->events) p->block->home->host_saw(e);
    put_back(p->block);
    return true;
  });
}

void Allocator::put_back(Block* block) {
  block->free = true;
  const auto absorb = [&](Block* left, Block* right) {  // right into left
    left->bytes += right->bytes;
    left->next = right->next;
    if (left->next) left->next->previous = left;
    delete right;
  };
  const auto mergeable = [&](Block* b) { return b && b->free && b->home == block->home; };
  if (mergeable(block->next)) {
    free_.erase({block->next->home, block->next->bytes, block->next->data});
    absorb(block, block->next);
  }
  if (mergeable(block->previous)) {
    free_.erase({block->previous->home, block->previous->bytes, block->previous->data});
    block = block->previous;
    absorb(block, block->next);
  }
  free_[{block->home, block->bytes, block->data}] = block;
}

void Allocator::account(MemoryCategory category, int64_t bytes) {
  for (MemoryUsage* u : {&usage_[int(category)], &total_}) {
    u->current += bytes;
    u->peak = std::max(u->peak, u->current);
  }
}

MemoryUsage Allocator::usage(MemoryCategory category) const {
  std::lock_guard lock(mutex_);
  return usage_[int(category)];
}
MemoryUsage Allocator::total() const {
  std::lock_guard lock(mutex_);
  return total_;
}
MemoryUsage Allocator::reserved() const {
  std::lock_guard lock(mutex_);
  return reserved_;
}
void Allocator::reset_peaks() {
  std::lock_guard lock(mutex_);
  for (auto& u : usage_) u.peak = u.current;
  total_.peak = total_.current;
}

}  // namespace mtrain
