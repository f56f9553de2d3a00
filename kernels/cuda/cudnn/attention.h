// Attention through one handle of cuDNN: asks for plans, keeps them, executes them. Says which
// attention is not for cuDNN. Knows nothing of CUDA.
#pragma once
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "kernels/copy_blocks.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/document_table.h"
#include "kernels/cuda/cudnn/plan.h"
#include "kernels/cuda/plan_cache.h"

namespace mtrain::kernels::cuda {

class CudnnAttention {
 public:
  // What is done beside the plans, in a stream's order.
  struct Device {
    void* (*take)(size_t bytes, CUstream_st* stream);
    void (*give)(void* memory, CUstream_st* stream) noexcept;
    void (*clear)(void* memory, int64_t bytes, CUstream_st* stream);  // to 0
    void (*fill)(const DocumentTable& table, CUstream_st* stream);
    void (*copy)(const CopyBlocks& copy, CUstream_st* stream);
  };
  // The handle is of the current GPU, and its owner's.
  CudnnAttention(const CudnnApi& api, cudnnContext* handle, const CudnnTarget& target,
                 const Device& device)
      : api_(api), handle_(handle), target_(target), device_(device) {}

  // False, with nothing enqueued, where cuDNN is not asked, each reason for which is told once, or
  // has refused, which is remembered, and told once. Throws RunError where cuDNN fails to execute
  // its plan. Thread safe.
  bool run(const AttentionForward& f, CUstream_st* stream);
  bool run(const AttentionBackward& b, CUstream_st* stream);

  size_t plans() const { return plans_.size(); }  // refusals included

 private:
  struct Entry {
    std::shared_ptr<const CudnnPlan> plan;  // null: cuDNN has refused
  };
  class Scratch;
  class Documents;
  using Addresses = std::map<int64_t, const void*>;  // by tensor

  bool is_asked(const char* direction, const std::string& why_not);
  // Null: cuDNN has refused.
  std::shared_ptr<const CudnnPlan> plan_for(const CudnnAttentionKey& key);
  void execute(const CudnnPlan& plan, const Addresses& memory, CUstream_st* stream);
  Entry make(const CudnnAttentionKey& key) const;

  const CudnnApi& api_;
  cudnnContext* handle_;
  CudnnTarget target_;
  Device device_;
  std::mutex executing_;  // the handle has one stream at a time
  std::mutex telling_;
  std::set<std::string> told_;
  PlanCache<CudnnAttentionKey, Entry> plans_;
};

}  // namespace mtrain::kernels::cuda
