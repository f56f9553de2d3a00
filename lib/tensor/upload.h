// Copies of host values into a tensor that exists already.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace mtrain::tensor {

// Overwrites the first elements of `to`. The copy runs in the stream's order, and the host does not
// wait for it.
template <class T>
void upload(Stream& stream, const Tensor& to, std::vector<T> values) {
  const auto count = int64_t(values.size());
  MT_CHECK(to.dtype() == dtype_of<T> && count <= to.count(), "{} values of {} for {} of {}", count,
           dtype_name(dtype_of<T>), to.count(), dtype_name(to.dtype()));
  if (count == 0) return;
  const auto keep = std::make_shared<std::vector<T>>(std::move(values));
  stream.upload(to.flat(0, {count}), keep, keep->data());
}

}  // namespace mtrain::tensor
