// A cuDNN plan of attention. NVIDIA's C++ frontend makes it, in one source of its own
// (kernels/cuda/cudnn_frontend). This header includes no CUDA header.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "kernels/cuda/cudnn/attention_key.h"

struct CUstream_st;
struct cudnnContext;

namespace mtrain::kernels::cuda {

// Addresses of the caller's tensors, by AttentionTensor and offsets_of().
using CudnnAddresses = std::map<int64_t, const void*>;

class CudnnAttentionPlan {
 public:
  virtual ~CudnnAttentionPlan() = default;
  virtual int64_t workspace() const = 0;  // bytes: cuDNN's and the graph's own tensors
  virtual int engine() const = 0;         // its index among the heuristics' engines
  virtual std::string name() const = 0;   // cuDNN's name of the engine and its settings
  // `memory` has an address for each of the key's tensors. A handle executes one plan at a time.
  // Returns "", or why cuDNN refuses the call; it has then enqueued nothing. Throws RunError if
  // cuDNN fails.
  [[nodiscard]] virtual std::string execute(cudnnContext* handle, const CudnnAddresses& memory,
                                            void* workspace) const = 0;
};

// The target of a plan: a GPU through its handle, or a GPU that is only described.
struct CudnnPlace {
  cudnnContext* handle = nullptr;
  int architecture = 0;     // the GPU's: 90 is sm_90
  std::string description;  // without a handle: cuDNN's JSON form of the GPU's properties
};

struct CudnnPlanOptions {
  int64_t max_workspace = INT64_MAX;  // bytes; engines that need more are skipped
  int first_engine = 0;               // skips the heuristics' engines before this index
};

// Thrown if engines accept the graph, and each needs more workspace than is allowed.
class CudnnWorkspaceError : public RunError {
 public:
  using RunError::RunError;
};

// Takes the heuristics' first engine that accepts the graph. Throws RunError with the frontend's
// message if there is none. cudnn_library() must be loaded.
std::unique_ptr<CudnnAttentionPlan> make_cudnn_attention_plan(const CudnnAttentionKey& key,
                                                              const CudnnPlace& place,
                                                              const CudnnPlanOptions& options);

// Returns why this build has no frontend; "" if it has one.
std::string why_no_cudnn_frontend();
// Returns "cudnn-frontend 1.32.0", or why there is none.
std::string cudnn_frontend_description();

}  // namespace mtrain::kernels::cuda
