#include "model/tensor_parallel.h"

#include <algorithm>

#include "base/math.h"

namespace mtrain::model {

std::unique_ptr<Linear> TensorParallel::column_linear(ParamStore& params, const LinearSpec& spec) {
  return plain_linear(params, spec);
}

std::unique_ptr<Linear> TensorParallel::row_linear(ParamStore& params, const LinearSpec& spec) {
  return plain_linear(params, spec);
}

Tensor TensorParallel::gather_sums(Step&, const Tensor& sums_T3) {
  return sums_T3.view({1, sums_T3.dim(0), sums_T3.dim(1)});
}

int64_t TensorParallel::local_count(int64_t n) const {
  return n < size() ? 1 : exact_div(n, int64_t(size()));
}

Tensor TensorParallel::own_rows(const Tensor& x_T) const {
  if (!sequence()) return x_T;
  const int64_t T = x_T.dim(0), first = first_row(T);
  return x_T.rows(first, first + exact_div(T, int64_t(size())));
}

}  // namespace mtrain::model
