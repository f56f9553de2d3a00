#include "train/update_graph.h"

#include <utility>

#include "base/error.h"
#include "device/device.h"
#include "ops/elementwise.h"
#include "tensor/upload.h"

namespace mtrain::train {

namespace {
Tensor one_element(Stream& stream, DType dtype) {
  return Tensor::empty(stream, {1}, dtype, device::MemoryCategory::buffers);
}
}  // namespace

UpdateGraph::UpdateGraph(Stream& compute, optim::Optimizer& optimizer,
                         std::shared_ptr<device::MemoryPool> pool)
    : compute_(compute),
      optimizer_(optimizer),
      pool_(std::move(pool)),
      unscale_1_(one_element(compute, DType::f64)),
      norm_1_(one_element(compute, DType::f32)) {}

bool UpdateGraph::prepare(const Update& update, const Enqueue& enqueue) {
  if (runs_++ == 0) return false;
  optimizer_.write_arguments(compute_, update.number, update.lr);
  if (update.unscale != unscale_) tensor::upload<double>(compute_, unscale_1_, {update.unscale});
  unscale_ = update.unscale;
  if (graph_) return true;
  device::Capture capture(compute_, pool_);
  ops::cast(compute_, enqueue(unscale_1_), norm_1_);
  graph_.emplace(capture.finish("graph_update"));
  return true;
}

Tensor UpdateGraph::replay() {
  graph_->replay();
  ++replays_;
  return norm_1_;
}

}  // namespace mtrain::train
