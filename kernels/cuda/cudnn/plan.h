// An operation graph as a plan of cuDNN's that can be executed.
#pragma once
#include <map>
#include <vector>

#include "kernels/cuda/cudnn/api.h"
#include "kernels/cuda/cudnn/operation_graph.h"

namespace mtrain::kernels::cuda {

// For what a plan is made: a GPU through its handle, or one that is elsewhere by its description.
struct CudnnPlace {
  cudnnContext* handle = nullptr;
  void* device_properties = nullptr;  // without a handle: a finalized descriptor
};

struct CudnnPlanOptions {
  bool deterministic = true;          // passes over engines that note they are not
  int64_t max_workspace = INT64_MAX;  // bytes, engines that need more are passed over
};

class CudnnPlan {
 public:
  // The first engine that the heuristics name and that takes the graph. Throws RunError with what
  // cuDNN said where there is none.
  CudnnPlan(const CudnnApi& api, const CudnnPlace& place, OperationGraph graph,
            const CudnnPlanOptions& options);
  ~CudnnPlan();
  CudnnPlan(const CudnnPlan&) = delete;
  CudnnPlan& operator=(const CudnnPlan&) = delete;

  int64_t workspace() const { return workspace_; }  // bytes, the graph's own included
  // What of the workspace must be 0 when execute() begins.
  struct Range {
    int64_t begin, bytes;
  };
  const std::vector<Range>& sums() const { return sums_; }
  const OperationGraph& graph() const { return graph_; }
  // memory: an address for each of the graph's tensors in memory. One execution of a handle at a
  // time. Throws RunError where cuDNN fails.
  void execute(cudnnContext* handle, const std::map<int64_t, const void*>& memory,
               void* workspace) const;

 private:
  class Builder;
  const CudnnApi& api_;
  OperationGraph graph_;
  std::vector<void*> descriptors_;  // in the order of their making
  void* plan_ = nullptr;
  int64_t library_workspace_ = 0, workspace_ = 0;
  std::vector<Range> sums_;
};

}  // namespace mtrain::kernels::cuda
