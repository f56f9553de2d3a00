#include "train/update_graph.h"

#include <utility>

#include "base/error.h"
#include "device/device.h"
#include "ops/elementwise.h"
#include "tensor/upload.h"

namespace mtrain::train {

namespace {
Tensor elements(Stream& stream, int64_t count, DType dtype) {
  return Tensor::empty(stream, {count}, dtype, device::MemoryCategory::buffers);
}
}  // namespace

UpdateGraph::UpdateGraph(Stream& compute, optim::Optimizer& optimizer,
                         std::shared_ptr<device::MemoryPool> pool)
    : compute_(compute),
      optimizer_(optimizer),
      pool_(std::move(pool)),
      limits_2_(elements(compute, 2, DType::f64)),
      result_{elements(compute, 1, DType::f32), elements(compute, 1, DType::f32)} {}

bool UpdateGraph::prepare(const Update& update, const Enqueue& enqueue) {
  if (runs_++ == 0) return false;
  optimizer_.write_arguments(compute_, update.number, update.lr);
  const std::array values{update.limits.unscale, update.limits.norm};
  if (runs_ == 2 || values != written_)
    tensor::upload<double>(compute_, limits_2_, {values[0], values[1]});
  written_ = values;
  if (graph_) return true;
  device::Capture capture(compute_, pool_);
  const ops::Clip clip = enqueue({.in_memory_2 = limits_2_});
  ops::cast(compute_, clip.norm, result_.norm);
  ops::cast(compute_, clip.scale, result_.scale);
  graph_.emplace(capture.finish("graph_update"));
  return true;
}

ops::Clip UpdateGraph::replay() {
  graph_->replay();
  ++replays_;
  return result_;
}

}  // namespace mtrain::train
