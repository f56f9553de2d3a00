#include "kernels/cuda/cudnn/attention.h"

#include <atomic>

#include "base/error.h"
#include "base/log.h"

namespace mtrain::kernels::cuda {
namespace {

// The deterministic backward keeps all scores of a call in bf16: beyond this our own kernels, which
// keep none.
constexpr int64_t kMostWorkspace = int64_t(1) << 30;

std::atomic<bool> order_fixed{true};

}  // namespace

void fix_attention_order(bool fixed) { order_fixed = fixed; }
bool attention_order_is_fixed() { return order_fixed; }

CudnnAttention::Entry CudnnAttention::make(const CudnnAttentionKey& key) const {
  try {
    return {std::make_shared<const CudnnPlan>(
        api_, CudnnPlace{.handle = handle_},
        key.backward ? backward_graph(key) : forward_graph(key),
        CudnnPlanOptions{.deterministic = key.deterministic, .most_workspace = kMostWorkspace})};
  } catch (const RunError& e) {
    log::info(
        fmt::format("attention {} of {} x {} rows, {} keys, {} and {} heads of {}: mtrain's "
                    "own kernels, since {}",
                    key.backward ? "backward" : "forward", key.B, key.Sq, key.Skv, key.A, key.G,
                    key.D, e.message()));
    return {};
  }
}

bool CudnnAttention::run(const CudnnAttentionKey& key, const std::map<int64_t, const void*>& memory,
                         CUstream_st* stream) {
  const Entry entry = plans_.get(key, [&] { return make(key); });
  if (!entry.plan) return false;
  struct Workspace {
    const Memory& memory;
    CUstream_st* stream;
    void* address;
    ~Workspace() {
      if (address) memory.give(address, stream);
    }
  };
  const int64_t bytes = entry.plan->workspace();
  const Workspace workspace{memory_, stream,
                            bytes > 0 ? memory_.take(size_t(bytes), stream) : nullptr};
  for (const CudnnPlan::Range& r : entry.plan->sums())
    memory_.clear(static_cast<char*>(workspace.address) + r.begin, r.bytes, stream);
  std::lock_guard lock(executing_);
  if (const auto status = api_.set_stream(handle_, stream); status != CudnnStatus::success)
    throw RunError(fmt::format("cudnnSetStream failed: {}", api_.error_string(status)));
  entry.plan->execute(handle_, memory, workspace.address);
  return true;
}

bool CudnnAttention::run(const AttentionForward& f, CUstream_st* stream) {
  if (!why_not_cudnn(f, target_).empty()) return false;
  return run(key_of(f),
             {{kQuery, f.q.data.data},
              {kKey, f.k.data.data},
              {kValue, f.v.data.data},
              {kOut, f.out.data.data},
              {kLse, f.lse.data}},
             stream);
}

bool CudnnAttention::run(const AttentionBackward& b, bool deterministic, CUstream_st* stream) {
  if (!why_not_cudnn(b, target_).empty()) return false;
  return run(key_of(b, deterministic),
             {{kQuery, b.q.data.data},
              {kKey, b.k.data.data},
              {kValue, b.v.data.data},
              {kOut, b.out.data.data},
              {kLse, b.lse.data},
              {kOutGradient, b.dout.data.data},
              {kQueryGradient, b.dq.data.data},
              {kKeyGradient, b.dk.data.data},
              {kValueGradient, b.dv.data.data}},
             stream);
}

}  // namespace mtrain::kernels::cuda
