// A stand-in for cuDNN's plans of attention. It has engines as a test names them, and computes by
// the CPU kernels from what a plan gets: the key and the addresses of its tensors.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cudnn/attention_plan.h"

namespace mtrain::test {

struct CudnnStandIn {
  struct Engine {
    bool builds = true;
    int64_t workspace = 0, workspace_per_head = 0;  // bytes
    std::string refusal;                            // why it refuses to execute; "": it executes
  };
  // --- members that a test sets ---
  std::vector<Engine> engines{Engine{}};
  std::string refusal, failure;  // of every execution
  bool computes = true;          // false: executions are only counted
  // --- members that a test reads ---
  int alive = 0, plans = 0, tries = 0, executions = 0;
  CUstream_st* stream = nullptr;
  std::vector<kernels::cuda::CudnnAttentionKey> keys;  // of the plans, in their order

  static CudnnStandIn& it() {
    static CudnnStandIn one;
    return one;
  }
};

// Attention of a plan's key, with tensors at the addresses of an execution.
class PlanOnCpu {
 public:
  PlanOnCpu(const kernels::cuda::CudnnAttentionKey& key,
            const kernels::cuda::CudnnAddresses& memory)
      : k_(key), memory_(memory), lse_(size_t(key.A * rows())) {
    using namespace kernels::cuda;
    if (!k_.documents) return;
    const auto* const lengths = static_cast<const int32_t*>(memory_.at(kQueryLengths));
    for (int64_t b = 0; b < k_.B; ++b) {
      begin_.push_back(row_of(kQuery, b, k_.q));
      end_.push_back(begin_.back() + lengths[b]);
      if (lengths[b] > k_.longest) throw BugError("a document is longer than the plan's");
      for (const auto& [tensor, stride] :
           {std::pair{kKey, k_.k}, std::pair{kValue, k_.v}, std::pair{kLse, k_.lse_heads}})
        if (row_of(tensor, b, stride) != begin_.back()) throw BugError("offsets of two forms");
    }
  }

  void run() {
    using namespace kernels;
    using namespace kernels::cuda;
    auto* const lse = static_cast<float*>(const_cast<void*>(memory_.at(kLse)));
    // The kernels have (A, rows); packed documents (rows, heads).
    for (int64_t i = 0; k_.documents && k_.backward && i < rows() * k_.A; ++i)
      lse_[size_t(i % k_.A * rows() + i / k_.A)] = lse[i / k_.A * k_.lse_heads + i % k_.A];
    const Span own{k_.documents ? lse_.data() : lse, k_.B * k_.A * rows(), DType::f32};
    if (k_.backward)
      cpu::run(AttentionBackward{.shape = shape(),
                                 .q = view(kQuery, k_.q, k_.A, rows(), k_.type),
                                 .k = view(kKey, k_.k, k_.G, keys(), k_.type),
                                 .v = view(kValue, k_.v, k_.G, keys(), k_.type),
                                 .out = view(kOut, k_.out, k_.A, rows(), k_.type),
                                 .dout = view(kOutGradient, k_.dout, k_.A, rows(), k_.type),
                                 .lse = own,
                                 .dq = result(kQueryGradient, k_.dq, k_.A, rows(), k_.dq_type),
                                 .dk = result(kKeyGradient, k_.dk, k_.G, keys(), k_.dkv_type),
                                 .dv = result(kValueGradient, k_.dv, k_.G, keys(), k_.dkv_type)});
    else
      cpu::run(AttentionForward{.shape = shape(),
                                .q = view(kQuery, k_.q, k_.A, rows(), k_.type),
                                .k = view(kKey, k_.k, k_.G, keys(), k_.type),
                                .v = view(kValue, k_.v, k_.G, keys(), k_.type),
                                .out = result(kOut, k_.out, k_.A, rows(), k_.out_type),
                                .lse = own});
    for (int64_t i = 0; k_.documents && !k_.backward && i < rows() * k_.A; ++i)
      lse[i / k_.A * k_.lse_heads + i % k_.A] = lse_[size_t(i % k_.A * rows() + i / k_.A)];
  }

 private:
  int64_t B() const { return k_.documents ? 1 : k_.B; }
  int64_t rows() const { return k_.Sq; }
  int64_t keys() const { return k_.Skv; }
  int32_t row_of(int64_t tensor, int64_t document, int64_t stride) const {
    return int32_t(
        static_cast<const int32_t*>(memory_.at(kernels::cuda::offsets_of(tensor)))[document] /
        stride);
  }
  kernels::DocumentRows documents() {
    if (!k_.documents) return {};
    const int64_t n = int64_t(begin_.size());
    return {{begin_.data(), n, DType::i32}, {end_.data(), n, DType::i32}};
  }
  kernels::AttentionShape shape() {
    return {.B = B(),
            .Sq = rows(),
            .Skv = keys(),
            .A = k_.A,
            .G = k_.G,
            .D = k_.D,
            .Dv = k_.Dv,
            .causal = k_.causal,
            .q_start = k_.bottom_right ? keys() - rows() : 0,
            .window = k_.window,
            .q_documents = documents(),
            .kv_documents = documents(),
            .scale = k_.scale,
            .cap = k_.cap};
  }
  kernels::HeadSpan result(int64_t tensor, int64_t stride, int64_t heads, int64_t S,
                           DType type) const {
    using namespace kernels::cuda;
    void* const at = const_cast<void*>(memory_.at(tensor));
    const bool of_values =
        tensor == kValue || tensor == kOut || tensor == kOutGradient || tensor == kValueGradient;
    const int64_t D = of_values ? k_.Dv : k_.D;
    return {{at, (B() * S - 1) * stride + heads * D, type}, stride};
  }
  kernels::HeadView view(int64_t tensor, int64_t stride, int64_t heads, int64_t S,
                         DType type) const {
    const kernels::HeadSpan span = result(tensor, stride, heads, S, type);
    return {span.data, span.token_stride};
  }

  kernels::cuda::CudnnAttentionKey k_;
  const kernels::cuda::CudnnAddresses& memory_;
  std::vector<float> lse_;
  std::vector<int32_t> begin_, end_;
};

class PlanStandIn final : public kernels::cuda::CudnnAttentionPlan {
 public:
  PlanStandIn(const kernels::cuda::CudnnAttentionKey& key, int engine)
      : key_(key), engine_(engine) {
    ++CudnnStandIn::it().alive;
    ++CudnnStandIn::it().plans;
    CudnnStandIn::it().keys.push_back(key);
  }
  ~PlanStandIn() override { --CudnnStandIn::it().alive; }
  static int64_t bytes(const kernels::cuda::CudnnAttentionKey& key,
                       const CudnnStandIn::Engine& engine) {
    return engine.workspace + engine.workspace_per_head * key.A;
  }

  int64_t workspace() const override {
    return bytes(key_, CudnnStandIn::it().engines[size_t(engine_)]);
  }
  int engine() const override { return engine_; }
  std::string name() const override { return "stand-in"; }
  std::string execute(cudnnContext*, const kernels::cuda::CudnnAddresses& memory,
                      void*) const override {
    CudnnStandIn& s = CudnnStandIn::it();
    ++s.tries;
    if (!s.failure.empty()) throw RunError(s.failure);
    if (!s.refusal.empty()) return s.refusal;
    if (const auto& why = s.engines[size_t(engine_)].refusal; !why.empty()) return why;
    if (s.computes) PlanOnCpu(key_, memory).run();
    ++s.executions;
    return "";
  }

 private:
  kernels::cuda::CudnnAttentionKey key_;
  int engine_;
};

inline std::unique_ptr<kernels::cuda::CudnnAttentionPlan> make_plan_stand_in(
    const kernels::cuda::CudnnAttentionKey& key, const kernels::cuda::CudnnPlace&,
    const kernels::cuda::CudnnPlanOptions& options) {
  const auto& engines = CudnnStandIn::it().engines;
  bool too_large = false;
  for (size_t i = size_t(options.first_engine); i < engines.size(); ++i) {
    if (!engines[i].builds) continue;
    if (PlanStandIn::bytes(key, engines[i]) <= options.max_workspace)
      return std::make_unique<PlanStandIn>(key, int(i));
    too_large = true;
  }
  if (too_large) throw kernels::cuda::CudnnWorkspaceError("too much workspace");
  throw RunError("no engine");
}

}  // namespace mtrain::test
