#include "storage/read_ahead.h"

#include <system_error>
#include <utility>

namespace mtrain::storage {

ReadAhead::ReadAhead(int threads, size_t blocks, Next next, Load load)
    : blocks_(blocks), next_(std::move(next)), load_(std::move(load)) {
  try {
    for (int i = 0; i < threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // fewer threads, or none, read the same
  }
}

ReadAhead::~ReadAhead() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ReadAhead::work() {
  for (;;) {
    size_t index = 0;
    std::optional<BlockKey> key;
    {
      const std::scoped_lock in_order(order_mutex_);
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || begun_ < position_ + blocks_; });
        if (stop_) return;
      }
      try {
        key = next_();
      } catch (...) {  // the reader meets the same error
      }
      const std::scoped_lock lock(mutex_);
      if (!key) stop_ = true;
      if (!key) break;
      index = begun_++;
      index_of_.emplace(*key, index);
      if (early_.erase(*key) > 0) {
        pass(index);
        continue;
      }
    }
    Loaded loaded;
    try {
      loaded.hold = load_(*key);
    } catch (...) {
      loaded.failure = std::current_exception();
    }
    const std::scoped_lock lock(mutex_);
    if (index >= position_) loaded_.emplace(index, std::move(loaded));
  }
  changed_.notify_all();
}

// Call it with the mutex held.
void ReadAhead::pass(size_t index) {
  if (index <= position_) return;
  position_ = index;
  loaded_.erase(loaded_.begin(), loaded_.lower_bound(position_));
}

void ReadAhead::needed(const BlockKey& key) {
  std::exception_ptr failure;
  {
    const std::scoped_lock lock(mutex_);
    const auto at = index_of_.find(key);
    if (at == index_of_.end()) {
      early_.insert(key);
      return;
    }
    if (const auto loaded = loaded_.find(at->second); loaded != loaded_.end())
      failure = std::exchange(loaded->second.failure, {});
    pass(at->second);
  }
  changed_.notify_all();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace mtrain::storage
