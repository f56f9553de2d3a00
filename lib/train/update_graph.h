// Runs a step's update, from the clipping of gradients on, as one CUDA graph. The first update runs
// without a graph, the second one is captured, and the graph is replayed from then on. What differs
// between updates is in device memory: learning rate, bias corrections, keys of stochastic
// rounding, the loss scale, the limit of the norm, the factor that clips. An update that is not
// finite changes nothing, and the device decides that, too.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "device/graph.h"
#include "optim/optimizer.h"

namespace mtrain::train {

class UpdateGraph {
 public:
  // The graph uses the memory of `pool`, in which nothing else is alive during an update.
  UpdateGraph(Stream& compute, optim::Optimizer& optimizer,
              std::shared_ptr<device::MemoryPool> pool);

  struct Update {
    int64_t number = 0;  // counted from 1
    float lr = 0;
    ops::ClipLimits limits = {};  // without in_memory_2
  };
  // Enqueues an update, and returns the gradient norm and the factor of its gradients.
  using Enqueue = std::function<ops::Clip(const ops::ClipLimits& limits)>;
  // Returns whether replay() can run this update; if not, the caller enqueues it. Writes what it
  // reads, and captures the second update. All updates must enqueue the same launches on the same
  // memory. Throws RunError if the launches cannot be captured.
  bool prepare(const Update& update, const Enqueue& enqueue);
  ops::Clip replay();

  int64_t replays() const { return replays_; }

 private:
  Stream& compute_;
  optim::Optimizer& optimizer_;
  const std::shared_ptr<device::MemoryPool> pool_;
  Tensor limits_2_;                // ClipLimits::in_memory_2
  std::array<double, 2> written_;  // its values
  ops::Clip result_;
  std::optional<device::Graph> graph_;
  int64_t runs_ = 0, replays_ = 0;
};

}  // namespace mtrain::train
