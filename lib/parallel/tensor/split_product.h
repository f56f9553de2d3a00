// Products that are split into chunks of rows, so that communication hides behind the chunks (Wang
// et al. 2023, "Overlap communication with dependent computation via decomposition").
#pragma once
#include <functional>

#include "parallel/tensor/tensor_comm.h"
#include "parallel/tensor/tensor_overlap.h"

namespace mtrain {

// Enqueues the product of some rows on the compute stream.
using RowProduct = std::function<void(const Tensor& in_TI, const Tensor& out_TO)>;

// The product (T, O) of all ranks' rows, of which x_TI are this rank's. Chunks go round a ring, and
// each is multiplied as soon as it is there. `gathered_TI`: all ranks' rows, where the caller wants
// them.
Tensor ring_gather_product(const TensorComm& comm, const Tensor& x_TI, int64_t O, bool aggregate,
                           const RowProduct& product, Tensor* gathered_TI = nullptr);

// This rank's rows of the sum of all ranks' products (T, O). Others' rows are multiplied first, and
// each chunk is on its way to its rank while the next is multiplied; this rank's own come last, and
// the last chunk travels behind them. The sum runs in the order of ranks, as that of a
// reduce-scatter through shared memory does.
Tensor ring_product_scatter(const TensorComm& comm, const Tensor& x_TI, int64_t O,
                            const RowProduct& product);

// The same by reduce-scatters of `splits` chunks, of which the last is awaited.
Tensor pipelined_product_scatter(const TensorComm& comm, const Tensor& x_TI, int64_t O,
                                 int64_t splits, const RowProduct& product);

}  // namespace mtrain
