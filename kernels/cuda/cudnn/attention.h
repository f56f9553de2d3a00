// Attention through one handle of cuDNN: makes plans, keeps them and executes them, and logs which
// attention cuDNN does not compute. This header includes no CUDA header.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "kernels/copy_blocks.h"
#include "kernels/cuda/cudnn/api.h"
#include "kernels/cuda/cudnn/attention_plan.h"
#include "kernels/cuda/cudnn/document_table.h"
#include "kernels/cuda/cudnn/spread_rows.h"
#include "kernels/cuda/plan_cache.h"

namespace mtrain::kernels::cuda {

class CudnnAttention {
 public:
  // Functions for the work around the plans, which run in a stream's order.
  struct Device {
    void* (*take)(size_t bytes, CUstream_st* stream);
    void (*give)(void* memory, CUstream_st* stream) noexcept;
    void (*fill)(const DocumentTable& table, CUstream_st* stream);
    void (*copy)(const CopyBlocks& copy, CUstream_st* stream);
    void (*spread)(const SpreadRows& rows, CUstream_st* stream);
    bool (*capturing)(CUstream_st* stream);
    // Called when cuDNN has refused to execute a plan. Throws RunError if the GPU has failed: such
    // a failure is not a refusal.
    void (*require_healthy)(CUstream_st* stream);
  };
  using MakePlan = decltype(make_cudnn_attention_plan);
  // The deterministic backward keeps all scores of a call in 16 bits. Above this limit calls
  // compute some of the heads each; if one kv head is too many, our own kernels keep no scores. The
  // other backward keeps only dk and dv of each query head.
  static constexpr int64_t kMaxWorkspace = int64_t(1) << 30;
  // The handle belongs to the current GPU; the caller owns it.
  CudnnAttention(const CudnnApi& api, cudnnContext* handle, const CudnnTarget& target,
                 const Device& device, int64_t max_workspace = kMaxWorkspace,
                 MakePlan* make_plan = make_cudnn_attention_plan)
      : api_(api),
        handle_(handle),
        target_(target),
        device_(device),
        max_workspace_(max_workspace),
        make_plan_(make_plan) {}

  // Return false, with nothing written, if the rules exclude cuDNN or it has refused. Each such
  // reason is logged once, and refusals are remembered. If the engine of a plan refuses to execute
  // it, the next engine is tried. Throw RunError if cuDNN fails to execute its plan. In the capture
  // of a graph, they also throw it if the plan was not executed before the capture. Thread-safe.
  bool run(const AttentionForward& f, CUstream_st* stream);
  bool run(const AttentionBackward& b, CUstream_st* stream);

  // Return the engine that computed the most recent such call: "cuDNN, engine 0"; "" if it was not
  // cuDNN.
  std::string engine_of(const AttentionForward& f) const;
  std::string engine_of(const AttentionBackward& b) const;

  size_t plans() const { return plans_.size(); }  // refusals included

 private:
  struct Chosen {
    std::unique_ptr<CudnnAttentionPlan> plan;
    int64_t calls = 1;  // each for an equal number of heads
    std::atomic<bool> executed{false};
  };
  using Entry = std::shared_ptr<Chosen>;  // null if cuDNN has refused
  class Scratch;
  class Documents;
  class OwnLse;
  class OwnGradient;

  bool is_asked(const char* direction, const std::string& why_not);
  Entry plan_for(const CudnnAttentionKey& key);
  // execute() returns false if the last engine has refused; the others return why an engine has
  // refused, or "".
  bool execute(const CudnnAttentionKey& key, const CudnnAddresses& memory, CUstream_st* stream);
  std::string execute_calls(const Chosen& chosen, const CudnnAttentionKey& key,
                            const CudnnAddresses& memory, CUstream_st* stream);
  std::string execute_one(const CudnnAttentionPlan& plan, const CudnnAddresses& memory,
                          CUstream_st* stream);
  // Makes a plan from the heuristics' engines, starting at the given one and at this number of
  // calls.
  Entry make(const CudnnAttentionKey& key, int64_t calls = 1, int first_engine = 0) const;
  std::string engine_of(const CudnnAttentionKey& key) const;

  const CudnnApi& api_;
  cudnnContext* handle_;
  CudnnTarget target_;
  Device device_;
  int64_t max_workspace_;  // bytes, of deterministic plans
  MakePlan* make_plan_;
  std::mutex executing_;  // held during an execution, since the handle has one stream at a time
  std::mutex telling_;
  std::set<std::string> reported_;
  PlanCache<CudnnAttentionKey, Entry> plans_;
};

}  // namespace mtrain::kernels::cuda
