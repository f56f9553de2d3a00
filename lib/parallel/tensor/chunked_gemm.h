// GEMMs in chunks of rows: communication is hidden behind the chunks (Wang et al. 2023, "Overlap
// communication with dependent computation via decomposition"). T counts the tokens of all P ranks.
#pragma once
#include <functional>

#include "parallel/tensor/tensor_comm.h"

namespace mtrain::parallel {

// Enqueues the GEMM of some rows on the compute stream: in_TI -> out_TO.
using RowGemm = std::function<void(const Tensor& in_TI, const Tensor& out_TO)>;

struct GatheredGemm {
  Tensor y_TO;  // (T, O)
  Tensor x_TI;  // (T, I), the rows of all ranks; absent unless requested
};

// All-gather, then GEMM. x_TI (T / P, I) are this rank's rows; returns y (T, O) for the rows of all
// ranks. Chunks go around a ring; the GEMM of each begins as soon as it has arrived. `aggregate`: a
// chunk has two ranks' rows. `keep_gathered`: also return the rows of all ranks.
GatheredGemm all_gather_gemm_ring(const TensorComm& comm, const Tensor& x_TI, int64_t O,
                                  bool aggregate, const RowGemm& gemm, bool keep_gathered = false);

// GEMM, then reduce-scatter: returns this rank's rows (T / P, O) of the sum of all ranks' results
// for x_TI (T, I). Other ranks' rows come first; each chunk travels to its rank during the GEMM of
// the next. This rank's own rows come last, and their GEMM hides the last chunk's transfer. The sum
// runs in the order of ranks, as in a reduce-scatter through shared memory.
Tensor gemm_reduce_scatter_ring(const TensorComm& comm, const Tensor& x_TI, int64_t O,
                                const RowGemm& gemm);

// Does the same by a reduce-scatter for each of at most `splits` chunks. Compute waits for the last
// one. Each GEMM has a multiple of `rows_multiple` rows if T is one.
Tensor gemm_reduce_scatter_pipelined(const TensorComm& comm, const Tensor& x_TI, int64_t O,
                                     int64_t splits, int64_t rows_multiple, const RowGemm& gemm);

}  // namespace mtrain::parallel
