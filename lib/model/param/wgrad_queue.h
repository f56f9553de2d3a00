// The one mechanism that separates weight gradients from input gradients. An entry runs at once, or
// is held until the schedule drains it. Zero-bubble W actions and the settings that delay weight
// gradients differ only in when they drain.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace mtrain::model {

struct Parameter;

class WgradQueue {
 public:
  struct Entry {
    std::function<void()> run;  // enqueues the weight-gradient work; holds the activations it needs
    // The parameters whose gradients of this micro-batch are complete once `run` has returned.
    std::vector<Parameter*> completes;
  };
  using OnReady = std::function<void(Parameter&)>;

  // `on_ready` is called for every parameter whose gradient of a micro-batch is complete, so that
  // data parallelism can reduce it. It may be empty.
  explicit WgradQueue(OnReady on_ready = {}) : on_ready_(std::move(on_ready)) {}

  void push(Entry entry);
  // Says that a gradient which was computed outside the queue is complete. Frozen parameters have
  // none, and are never reported.
  void ready(Parameter& p);
  // From now on the gradients of pushed entries and of ready() are complete (true), or a later part
  // of the micro-batch adds to the same ones.
  void report(bool on) { reports_ = on; }
  // From now on pushed entries wait (true) or run at once (false). Held entries keep waiting.
  void hold(bool on);
  bool holding() const { return holding_; }
  // Runs up to `max_entries` held entries, oldest first. Returns how many it ran.
  size_t drain(size_t max_entries = SIZE_MAX);
  // Runs all held entries but the `kept` oldest.
  void drain_after(size_t kept);
  // Runs `count` held entries after the `kept` oldest, oldest first.
  void drain_after(size_t kept, size_t count);
  // Moves the held entries to `other`, which holds them on.
  void hand_over(WgradQueue& other);
  size_t held() const { return held_.size(); }

 private:
  void finish(Entry& entry);
  void complete(Parameter& p);

  OnReady on_ready_;
  std::deque<Entry> held_;
  bool holding_ = false, reports_ = true;
};

}  // namespace mtrain::model
