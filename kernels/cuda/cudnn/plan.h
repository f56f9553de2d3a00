// A cuDNN plan, which executes an operation graph.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/cudnn/api.h"
#include "kernels/cuda/cudnn/operation_graph.h"

namespace mtrain::kernels::cuda {

// The target of a plan: a GPU through its handle, or a GPU of a different machine by its
// description.
struct CudnnPlace {
  cudnnContext* handle = nullptr;
  void* device_properties = nullptr;  // without a handle: a finalized descriptor
};

struct CudnnPlanOptions {
  bool deterministic = true;  // skips engines whose notes say that they are nondeterministic
  int64_t max_workspace = INT64_MAX;  // bytes; engines that need more are skipped
  int first_engine = 0;               // skips the heuristics' engines before this index
};

// Thrown if engines accept the graph, and each needs more workspace than is allowed.
class CudnnWorkspaceError : public RunError {
 public:
  using RunError::RunError;
};

class CudnnPlan {
 public:
  // Takes the heuristics' first engine that accepts the graph. Throws RunError with cuDNN's message
  // if there is none.
  CudnnPlan(const CudnnApi& api, const CudnnPlace& place, OperationGraph graph,
            const CudnnPlanOptions& options);
  ~CudnnPlan();
  CudnnPlan(const CudnnPlan&) = delete;
  CudnnPlan& operator=(const CudnnPlan&) = delete;

  int64_t workspace() const { return workspace_; }  // bytes, including the graph's own tensors
  const OperationGraph& graph() const { return graph_; }
  int engine() const { return engine_; }  // its index among the heuristics' engines
  // `memory` has an address for each of the graph's tensors in memory. A handle executes one plan
  // at a time. Returns "", or why cuDNN refuses the call; it has then enqueued nothing. Throws
  // RunError if cuDNN fails.
  [[nodiscard]] std::string execute(cudnnContext* handle,
                                    const std::map<int64_t, const void*>& memory,
                                    void* workspace) const;

 private:
  class Builder;
  const CudnnApi& api_;
  OperationGraph graph_;
  std::vector<void*> descriptors_;  // in the order in which they were made
  void* plan_ = nullptr;
  int engine_ = 0;
  int64_t library_workspace_ = 0, workspace_ = 0;
};

}  // namespace mtrain::kernels::cuda
