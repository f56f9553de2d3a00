#include "parallel/tensor/tensor_comm.h"

#include "base/math.h"

namespace mtrain::parallel {

// The result's memory is compute's. It is allocated before the edge from compute, so that its last
// use there is over when the result arrives.
TensorComm::Coming TensorComm::gather(const Tensor& x_TN) const {
  Shape shape = x_TN.shape();
  shape[0] *= size();
  const Tensor out = Tensor::empty(compute(), shape, x_TN.dtype());
  after_compute();
  all().all_gather(x_TN, out, on());
  return {out, on().record()};
}

TensorComm::Coming TensorComm::reduce_scatter(const Tensor& x_TN) const {
  Shape shape = x_TN.shape();
  shape[0] = exact_div(shape[0], int64_t(size()));
  const Tensor out = Tensor::empty(compute(), shape, x_TN.dtype());
  after_compute();
  all().reduce_scatter(x_TN, out, comm::Reduce::sum, on());
  return {out, on().record()};
}

TensorComm::Coming TensorComm::all_reduce(const Tensor& x) const {
  after_compute();
  all().all_reduce(x, comm::Reduce::sum, on());
  return {x, on().record()};
}

Tensor TensorComm::await(const Coming& coming) const {
  compute().wait(coming.there);
  return coming.data;
}

}  // namespace mtrain::parallel
