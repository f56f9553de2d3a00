// Keeps unused events for later reuse: a driver takes longer to make an event than to record one.
// This header includes nothing of CUDA.
#pragma once
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace mtrain::device {

// Any thread may call it. An event is given back when its last owner is gone. Work that still waits
// for the recorded moment keeps waiting for it, even if the event is recorded again.
template <class Handle>
class EventPool {
 public:
  // Events that measure time and events that do not are of different kinds.
  using Create = std::function<Handle(bool timed)>;
  using Destroy = std::function<void(Handle)>;

  EventPool(Create create, Destroy destroy)
      : create_(std::move(create)), destroy_(std::move(destroy)) {}
  ~EventPool() {
    for (auto* kept : {&plain_, &timed_})
      for (const Handle event : *kept) destroy_(event);
  }
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  Handle take(bool timed) {
    {
      const std::lock_guard lock(mutex_);
      auto& kept = timed ? timed_ : plain_;
      if (!kept.empty()) {
        const Handle event = kept.back();
        kept.pop_back();
        return event;
      }
    }
    return create_(timed);
  }
  void give_back(Handle event, bool timed) {
    const std::lock_guard lock(mutex_);
    (timed ? timed_ : plain_).push_back(event);
  }
  // For an event that must not be used again.
  void drop(Handle event) { destroy_(event); }

 private:
  const Create create_;
  const Destroy destroy_;
  std::mutex mutex_;
  std::vector<Handle> plain_, timed_;
};

}  // namespace mtrain::device
