// A stand-in for the library cuDNN: what cuDNN's C++ frontend calls of its backend API. It records
// descriptors and executes plans: it computes their operations one after another, in float64 except
// for tensors that the graph rounds. In batches of unequal length, elements after the end of a
// sequence read as NaN, and writes to them are dropped.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include <cudnn.h>

namespace mtrain::test {

struct CudnnBackendStandIn {
  struct Engine {
    bool deterministic = true;
    int64_t workspace = 0;                           // bytes
    cudnnStatus_t plan = CUDNN_STATUS_SUCCESS;       // the status of finalizing its plan
    cudnnStatus_t executing = CUDNN_STATUS_SUCCESS;  // the status of executing its plan
  };
  // --- members that a test sets ---
  std::vector<Engine> engines{Engine{}};  // engines of heuristic mode a
  std::vector<Engine> fallback_engines;   // engines of the fallback mode
  // --- members that a test reads ---
  int alive = 0, plans = 0, executions = 0;
  std::map<int64_t, std::vector<int64_t>> dims, strides;  // by the tensor's id
  std::map<int64_t, int64_t> narrowest_row;               // of the tensors with the same offsets
  cudaStream_t stream = nullptr;

  static CudnnBackendStandIn& it();
};

}  // namespace mtrain::test
