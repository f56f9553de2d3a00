// GemmOverlap says how the communication of tensor parallelism hides behind one GEMM of a layer.
// The plan decides it (plan/tp_gemm_overlap.h), and parallel/tensor implements it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/layer_gemm.h"

namespace mtrain::plan {

struct GemmOverlap {
  enum class Method {
    none,           // compute waits for the communication
    bulk,           // the full transfer runs during a GEMM that does not need its data
    ring_exchange,  // a chunk of rows per rank: one is multiplied while another travels
    pipeline        // `splits` chunks of rows: one is reduced while the next is multiplied
  };
  Method method = Method::none;
  int64_t splits = 4;      // chunks of a pipeline
  bool aggregate = false;  // a ring sends two chunks at once; needs an even number of ranks > 2
  int64_t sm_margin = 0;   // multiprocessors of a GPU left to communication; 0: the device's number

  bool active() const { return method != Method::none; }
  // Whether the GEMM is computed in chunks of its rows.
  bool chunked() const { return method == Method::ring_exchange || method == Method::pipeline; }
};

using TpGemmOverlap = GemmTable<GemmOverlap>;

// Whether any GEMM of a layer is computed in chunks of its rows in this pass.
inline bool any_chunked(const TpGemmOverlap& overlap, Pass pass) {
  return std::ranges::any_of(kLayerGemms,
                             [&](LayerGemm gemm) { return overlap.at(gemm, pass).chunked(); });
}

}  // namespace mtrain::plan
