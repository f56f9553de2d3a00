#include "parallel/tensor/tensor_comm.h"

#include "base/math.h"

namespace mtrain::parallel {

// The result is allocated on compute, before the edge from compute to the communication. The edge
// therefore also covers the last use of the result's memory on compute.
TensorComm::Pending TensorComm::gather(const Tensor& x_TN) const {
  Shape shape = x_TN.shape();
  shape[0] *= size();
  const Tensor out = Tensor::empty(compute(), shape, x_TN.dtype());
  after_compute();
  all().all_gather(x_TN, out, stream());
  return {out, stream().record()};
}

TensorComm::Pending TensorComm::reduce_scatter(const Tensor& x_TN) const {
  Shape shape = x_TN.shape();
  shape[0] = exact_div(shape[0], int64_t(size()));
  const Tensor out = Tensor::empty(compute(), shape, x_TN.dtype());
  after_compute();
  all().reduce_scatter(x_TN, out, comm::Reduce::sum, stream());
  return {out, stream().record()};
}

TensorComm::Pending TensorComm::all_reduce(const Tensor& x) const {
  after_compute();
  all().all_reduce(x, comm::Reduce::sum, stream());
  return {x, stream().record()};
}

Tensor TensorComm::await(const Pending& pending) const {
  compute().wait(pending.ready);  // edge: the communication -> the use of its result
  return pending.data;
}

}  // namespace mtrain::parallel
