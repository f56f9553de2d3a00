// GEMMs in chunks of rows, so that communication hides behind the chunks (Wang et al. 2023,
// "Overlap communication with dependent computation via decomposition"). T tokens are those of all
// P ranks.
#pragma once
#include <functional>

#include "parallel/tensor/tensor_comm.h"

namespace mtrain::parallel {

// Enqueues the GEMM of some rows on the compute stream.
using RowGemm = std::function<void(const Tensor& in_TI, const Tensor& out_TO)>;

struct GatheredGemm {
  Tensor y_TO;  // (T, O)
  Tensor x_TI;  // (T, I), the rows of all ranks; absent unless asked for
};

// All-gather, then GEMM: returns y (T, O) of the rows of all ranks, of which x_TI (T / P, I) are
// this rank's. Chunks go round a ring, and each is multiplied as soon as it is there. `aggregate`:
// chunks of two ranks' rows. `keep_gathered`: return the rows of all ranks, too.
GatheredGemm all_gather_gemm_ring(const TensorComm& comm, const Tensor& x_TI, int64_t O,
                                  bool aggregate, const RowGemm& gemm, bool keep_gathered = false);

// GEMM, then reduce-scatter: returns this rank's rows (T / P, O) of the sum of all ranks' results
// for x_TI (T, I). Others' rows are multiplied first, and each chunk travels to its rank while the
// next is multiplied; this rank's own come last, and the last chunk travels behind them. The sum
// runs in the order of ranks, as that of a reduce-scatter through shared memory does.
Tensor gemm_reduce_scatter_ring(const TensorComm& comm, const Tensor& x_TI, int64_t O,
                                const RowGemm& gemm);

// The same by a reduce-scatter for each of `splits` chunks; compute waits for the last.
Tensor gemm_reduce_scatter_pipelined(const TensorComm& comm, const Tensor& x_TI, int64_t O,
                                     int64_t splits, const RowGemm& gemm);

}  // namespace mtrain::parallel
