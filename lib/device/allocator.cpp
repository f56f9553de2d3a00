#include "device/allocator.h"

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "base/strings.h"
#include "device/backend.h"
#include "device/device.h"

namespace mtrain::device {

namespace {
constexpr int64_t kGranule = 512;               // bytes; also the alignment of every buffer
constexpr int64_t kSmall = 1ll << 20;           // smaller buffers share segments of kSmallSegment
constexpr int64_t kSmallSegment = 2ll << 20;    // bytes
constexpr int64_t kMediumSegment = 16ll << 20;  // shared by buffers of up to a quarter of it
constexpr int64_t kSegmentGranule = 2ll << 20;  // a huge page; larger segments are multiples of it

// Returns "params 1.0 GiB, grads 2.0 GiB, ..."; workspace is listed only if there is any.
std::string by_category(const std::array<MemoryUsage, kMemoryCategories>& usage,
                        int64_t MemoryUsage::*bytes) {
  std::string text;
  for (int i = 0; i < kMemoryCategories; ++i) {
    const int64_t n = usage[size_t(i)].*bytes;
    if (MemoryCategory(i) == MemoryCategory::workspace && n == 0) continue;
    text += fmt::format("{}{} {}", i ? ", " : "", category_name(MemoryCategory(i)),
                        human_bytes(double(n)));
  }
  return text;
}
}  // namespace

// A piece of a segment. Neighbours in address order are linked: free ones can then merge.
struct Block {
  char* data;
  int64_t bytes;
  Stream* home;
  bool small;  // in a segment of small buffers
  int pool;    // id; 0: available to all allocations
  bool free = true;
  Block *previous = nullptr, *next = nullptr;
};

std::string_view category_name(MemoryCategory category) {
  constexpr std::string_view names[] = {"params",      "grads",   "optimizer",
                                        "activations", "buffers", "workspace"};
  return names[int(category)];
}

Storage::~Storage() {
  if (const auto owner = allocator.lock()) owner->release(*this);
}

Allocator::Allocator(DeviceBackend& backend) : backend_(backend) {}

// The device has drained its streams. Buffers that outlive the allocator lose their memory here;
// their weak pointers to the allocator have expired.
Allocator::~Allocator() {
  for (auto& [memory, segment] : segments_) {
    for (Block* b = segment.first; b != nullptr;) delete std::exchange(b, b->next);
    backend_.release(memory, segment.bytes);
  }
}

MemoryPool::~MemoryPool() {
  if (const auto owner = owner_.lock()) owner->dissolve(id_);
}

std::shared_ptr<MemoryPool> Allocator::make_pool() {
  std::lock_guard lock(mutex_);
  return std::shared_ptr<MemoryPool>(new MemoryPool(weak_from_this(), ++pools_));
}

Allocator::Open::Open(Allocator& allocator, const MemoryPool& pool)
    : allocator_(allocator), before_(std::exchange(allocator.open_, pool.id())) {}

Allocator::Open::Open(Allocator& allocator)
    : allocator_(allocator), before_(std::exchange(allocator.open_, 0)) {}

// The streams are made to wait without the allocator's lock, since streams' locks come before it.
void Allocator::await_users(const MemoryPool& pool) {
  std::vector<Use> uses;
  {
    std::lock_guard lock(mutex_);
    for (const Pending& p : pending_)
      if (p.block->pool == pool.id()) uses.insert(uses.end(), p.uses.begin(), p.uses.end());
  }
  for (Stream* home : homes(pool))
    for (const Use& u : uses)
      if (u.touch.stream != home) home->wait(u.passed);
  free_dropped(pool);
}

void Allocator::free_dropped(const MemoryPool& pool) {
  std::lock_guard lock(mutex_);
  std::erase_if(pending_, [&](const Pending& p) {
    if (p.block->pool != pool.id()) return false;
    put_back(p.block);
    return true;
  });
}

int64_t Allocator::in_use(const MemoryPool& pool) const {
  std::lock_guard lock(mutex_);
  const auto it = pool_use_.find(pool.id());
  return it == pool_use_.end() ? 0 : it->second;
}

std::vector<Stream*> Allocator::homes(const MemoryPool& pool) const {
  std::lock_guard lock(mutex_);
  std::set<Stream*> all;
  for (const auto& [memory, segment] : segments_)
    if (segment.first->pool == pool.id()) all.insert(segment.first->home);
  return {all.begin(), all.end()};
}

void Allocator::dissolve(int pool) noexcept {
  std::lock_guard lock(mutex_);
  for (auto& [memory, segment] : segments_)
    for (Block* b = segment.first; b && b->pool == pool; b = b->next) {
      if (b->free) free_.erase(key_of(*b));
      b->pool = 0;
      if (b->free) free_[key_of(*b)] = b;
    }
}

Buffer Allocator::allocate(int64_t bytes, MemoryCategory category, Stream& home) {
  MT_CHECK(bytes >= 0, "{} bytes", bytes);
  auto storage = std::make_shared<Storage>();
  storage->category = category;
  storage->home = &home;
  if (bytes == 0) return storage;
  const int64_t rounded = round_up(bytes, kGranule);
  std::unique_lock lock(mutex_);
  // Launches request workspace very often; events are therefore queried only if no cached block
  // fits.
  Block* block = category == MemoryCategory::workspace ? find(rounded, home) : nullptr;
  if (!block) {
    collect();
    block = find_or_make(rounded, home, lock);
  }
  storage->data = block->data;
  storage->bytes = block->bytes;
  storage->serial = ++serial_;
  storage->allocator = weak_from_this();
  storage->block = block;
  storage->pool = block->pool;
  if (block->pool) pool_use_[block->pool] += block->bytes;
  account(category, block->bytes);
  return storage;
}

Buffer Allocator::adopt(std::shared_ptr<void> memory, int64_t bytes, MemoryCategory category,
                        Stream& home) {
  MT_CHECK(memory && bytes > 0, "{} bytes of adopted memory", bytes);
  auto storage = std::make_shared<Storage>();
  storage->category = category;
  storage->home = &home;
  storage->data = memory.get();
  storage->bytes = bytes;
  storage->allocator = weak_from_this();
  std::lock_guard lock(mutex_);
  storage->serial = ++serial_;
  adopted_.push_back(std::move(memory));
  account(category, bytes);
  reserved_.current += bytes;
  reserved_.peak = std::max(reserved_.peak, reserved_.current);
  return storage;
}

Block* Allocator::find_or_make(int64_t bytes, Stream& home, std::unique_lock<std::mutex>& lock) {
  const auto in_use = [&](const RunError& e) {
    return RunError(
        fmt::format("{}\n  in use on {}: {}", e.message(), home.device().description(), use()),
        e.hint());
  };
  try {
    return find_or_add(bytes, home);
  } catch (const RunError& e) {
    // During a capture the host cannot wait for the streams, so it cannot give cached memory back.
    if (home.device().capture()) throw in_use(e);
  }
  release_cached(home.device(), lock);
  try {
    return find_or_add(bytes, home);
  } catch (const RunError& e) {
    throw in_use(e);
  }
}

Block* Allocator::find(int64_t bytes, Stream& home) {
  const bool small = bytes < kSmall;
  const auto it = free_.lower_bound({open_, &home, small, bytes, nullptr});
  if (it == free_.end()) return nullptr;
  Block* block = it->second;
  if (block->pool != open_ || block->home != &home || block->small != small) return nullptr;
  free_.erase(it);
  block->free = false;
  if (block->bytes > bytes) {
    auto* rest = new Block{block->data + bytes, block->bytes - bytes, block->home, block->small,
                           block->pool};
    rest->previous = block;
    rest->next = block->next;
    if (rest->next) rest->next->previous = rest;
    block->next = rest;
    block->bytes = bytes;
    free_[key_of(*rest)] = rest;
  }
  return block;
}

Block* Allocator::find_or_add(int64_t bytes, Stream& home) {
  if (Block* block = find(bytes, home)) return block;
  add_segment(bytes, home);
  return find(bytes, home);
}

void Allocator::add_segment(int64_t bytes, Stream& home) {
  const int64_t size = bytes < kSmall                ? kSmallSegment
                       : bytes <= kMediumSegment / 4 ? kMediumSegment
                                                     : round_up(bytes, kSegmentGranule);
  auto* memory = static_cast<char*>(backend_.allocate(size));
  reserved_.current += size;
  reserved_.peak = std::max(reserved_.peak, reserved_.current);
  auto* block = new Block{memory, size, &home, bytes < kSmall, open_};
  segments_[memory] = {size, block};
  free_[key_of(*block)] = block;
}

// Destructors call this. If a stream cannot record an event, the block is never reused: the job has
// failed anyway.
void Allocator::release(Storage& storage) noexcept {
  try {
    if (!storage.block) {
      std::lock_guard lock(mutex_);
      return account(storage.category, -storage.bytes);
    }
    Pending pending{storage.block, {}};
    const Stream& home = *storage.home;
    // Events are recorded before the allocator is locked: a stream that launches may drop buffers,
    // therefore its own lock comes first.
    std::exception_ptr failure;
    try {
      for (const Storage::Touch& t : storage.others)
        if (!home.comes_after(*t.stream, t.items)) pending.uses.push_back({t, t.stream->record()});
    } catch (...) {
      failure = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    account(storage.category, -storage.bytes);
    if (storage.pool) pool_use_[storage.pool] -= storage.bytes;
    if (failure) return;
    if (pending.uses.empty()) return put_back(storage.block);
    pending_.push_back(std::move(pending));
  } catch (...) {
  }
}

void Allocator::collect() {
  for (auto it = pending_.begin(); it != pending_.end();) {
    Stream& home = *it->block->home;
    std::erase_if(it->uses, [&](const Use& u) {
      if (home.comes_after(*u.touch.stream, u.touch.items)) return true;
      if (!u.passed.ready()) return false;
      home.host_saw(u.passed);
      return true;
    });
    if (!it->uses.empty()) {
      ++it;
      continue;
    }
    put_back(it->block);
    it = pending_.erase(it);
  }
}

// Queued work of a free block's home may still use it; therefore the host waits for all streams.
void Allocator::release_cached(Device& device, std::unique_lock<std::mutex>& lock) {
  lock.unlock();  // closures that end during the wait drop buffers, which takes this lock
  device.synchronize();
  lock.lock();
  collect();
  std::erase_if(segments_, [&](const auto& entry) {
    const auto& [memory, segment] = entry;
    const Block* only = segment.first;
    if (!only->free || only->next || only->pool) return false;
    free_.erase(key_of(*only));
    delete only;
    backend_.release(memory, segment.bytes);
    reserved_.current -= segment.bytes;
    return true;
  });
}

std::string Allocator::use() const {
  return by_category(usage_, &MemoryUsage::current) +
         fmt::format(", and {} free in pieces that do not fit",
                     human_bytes(double(reserved_.current - total_.current)));
}

std::string Allocator::peaks() const {
  std::lock_guard lock(mutex_);
  return human_bytes(double(total_.peak)) + ": " + by_category(usage_, &MemoryUsage::peak);
}

Allocator::FreeKey Allocator::key_of(const Block& b) {
  return {b.pool, b.home, b.small, b.bytes, b.data};
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
    free_.erase(key_of(*block->next));
    absorb(block, block->next);
  }
  if (mergeable(block->previous)) {
    free_.erase(key_of(*block->previous));
    block = block->previous;
    absorb(block, block->next);
  }
  free_[key_of(*block)] = block;
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

}  // namespace mtrain::device
