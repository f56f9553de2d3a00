// The one mechanism that splits weight gradients from input gradients. An entry runs at once, or is
// held until the schedule drains it: zero-bubble W actions and every flag that delays weight
// gradients are different times to drain.
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
    std::vector<Parameter*>
        completes;  // parameters whose gradient of this micro-batch is whole once it has run
  };
  using OnReady = std::function<void(Parameter&)>;

  // `on_ready` is told of every parameter whose gradient is whole (data parallelism reduces it);
  // may be empty.
  explicit WgradQueue(OnReady on_ready = {}) : on_ready_(std::move(on_ready)) {}

  void push(Entry entry);
  void ready(Parameter& p);  // a gradient that was computed outside the queue is whole
  void hold(
      bool on);  // from now on entries wait (true) or run at once (false; held ones keep waiting)
  bool holding() const { return holding_; }
  size_t drain(size_t most =
                   SIZE_MAX);  // runs up to `most` held entries, oldest first; returns how many ran
  // Runs the held entries behind the `kept` oldest.
  void drain_behind(size_t kept);
  // Held entries go on waiting there.
  void hand_over(WgradQueue& other);
  size_t held() const { return held_.size(); }

 private:
  void finish(Entry& entry);

  OnReady on_ready_;
  std::deque<Entry> held_;
  bool holding_ = false;
};

}  // namespace mtrain::model
