// Grouped GEMMs by CUTLASS on the current GPU, if the build has it and the GPU is a Hopper.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <mutex>

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/cuda/cutlass/grouped_gemm.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/gemm/current_gpu.h"
#include "kernels/cuda/gemm/gemm_memory.h"
#include "kernels/cuda/gemm/gemm_timing.h"
#include "kernels/cuda/grouped/compare_rows.h"
#include "kernels/cuda/grouped/grouped_choice.h"
#include "kernels/cuda/grouped/grouped_engine.h"
#include "kernels/cuda/grouped/groups.h"

namespace mtrain::kernels::cuda {
namespace {

int attribute_of_gpu(int device, cudaDeviceAttr attribute) {
  int value = 0;
  MT_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

Span result_of(const GroupedCall& call) {
  if (const auto* m = std::get_if<GroupedMatmul>(&call)) return m->c_RN;
  return std::get<GroupedWeightGrad>(call).c_EMN;
}
int64_t columns_of(const GroupedCall& call) {
  return std::visit([](const auto& m) { return m.N; }, call);
}
GroupedCall with_result(const GroupedCall& call, const Span& c) {
  GroupedCall same = call;
  if (auto* m = std::get_if<GroupedMatmul>(&same))
    m->c_RN = c;
  else
    std::get<GroupedWeightGrad>(same).c_EMN = c;
  return same;
}

// The launches of one GEMM, and their memory.
class Launches {
 public:
  Launches(int multiprocessors, int64_t groups, CUstream_st* stream)
      : multiprocessors_(multiprocessors),
        stream_(stream),
        memory_(GroupMemory::bytes(int(groups)), stream),
        workspace_(kCutlassWorkspace, stream),
        groups_(memory_.get(), int(groups)) {}

  std::string run(const GroupedMatmul& m) {
    const bool float8 = is_float8(m), transposes = float8 && !m.trans_b;
    const Scratch<char> b(transposes ? PaddedColumns::elements(m.E * m.K, m.E, m.N) : 0, stream_);
    if (transposes) transpose_groups(m.b_EKN.data, nullptr, b.get(), m.E * m.K, m.E, m.N, stream_);
    const void* const b_data = transposes ? b.get() : m.b_EKN.data;
    fill(m, m.first_E1,
         {.trans_b = m.trans_b,
          .b_padded = transposes,
          .N = m.N,
          .K = m.K,
          .a_bytes = float8 ? 1 : 2,
          .b_bytes = float8 ? 1 : 2,
          .c_bytes = 2,
          .a = static_cast<const char*>(m.a_RK.data),
          .b = static_cast<const char*>(b_data),
          .c = static_cast<char*>(m.c_RN.data)});
    using Gemm = CutlassGemm;
    return run(m.a_RK.dtype == DType::f8e5m2 ? Gemm::e5m2_rows
               : float8                      ? Gemm::e4m3_rows
               : m.trans_b                   ? Gemm::bf16_rows
                                             : Gemm::bf16_rows_plain_b,
               false, m.sm_margin);
  }

  std::string run(const GroupedWeightGrad& m) {
    const bool float8 = is_float8(m);
    const auto* const first = static_cast<const int32_t*>(m.first_E1.data);
    const auto padded = [&](int64_t columns) {
      return float8 ? PaddedColumns::elements(m.R, m.E, columns) : 0;
    };
    const Scratch<char> a(padded(m.M), stream_), b(padded(m.N), stream_);
    if (float8) {
      transpose_groups(m.a_RM.data, first, a.get(), m.R, m.E, m.M, stream_);
      transpose_groups(m.b_RN.data, first, b.get(), m.R, m.E, m.N, stream_);
    }
    fill(m, m.first_E1,
         {.weights = true,
          .a_padded = float8,
          .b_padded = float8,
          .M = m.M,
          .N = m.N,
          .a_bytes = float8 ? 1 : 2,
          .b_bytes = float8 ? 1 : 2,
          .c_bytes = 4,
          .a = float8 ? a.get() : static_cast<const char*>(m.a_RM.data),
          .b = float8 ? b.get() : static_cast<const char*>(m.b_RN.data),
          .c = static_cast<char*>(m.c_EMN.data)});
    const std::string refusal = run(m.a_RM.dtype == DType::f8e5m2 ? CutlassGemm::e5m2_weights
                                    : float8                      ? CutlassGemm::e4m3_weights
                                                                  : CutlassGemm::bf16_weights,
                                    m.accumulate, m.sm_margin);
    if (refusal.empty() && !m.accumulate)
      clear_empty_groups(static_cast<float*>(m.c_EMN.data), first, m.E, m.M * m.N, stream_);
    return refusal;
  }

 private:
  template <class Args>
  void fill(const Args& m, const ConstSpan& first_E1, const GroupsOf& all) {
    fill_groups(groups_, all, static_cast<const int32_t*>(first_E1.data),
                static_cast<const float*>(m.a_inverse.data),
                static_cast<const float*>(m.b_inverse.data), stream_);
  }
  std::string run(CutlassGemm gemm, bool accumulate, int64_t margin) {
    return cuda::run_cutlass(
        {.gemm = gemm,
         .groups = groups_.arrays,
         .alpha = groups_.alpha,
         .accumulate = accumulate,
         .multiprocessors = int(std::max<int64_t>(multiprocessors_ - margin, 1)),
         .workspace = workspace_.get()},
        stream_);
  }

  const int multiprocessors_;
  CUstream_st* const stream_;
  const Scratch<char> memory_, workspace_;
  const GroupMemory groups_;
};

// A GEMM of a kind on separate memory, with the same number of rows for each expert.
class GroupedExample {
 public:
  GroupedExample(const GroupedKey& k, int64_t R, CUstream_st* stream) : stream_(stream) {
    const Span a = make(R * k.K, k.a), b = make(k.weights ? R * k.N : k.E * k.K * k.N, k.b);
    const Span c = make(k.weights ? k.E * k.K * k.N : R * k.N, k.c);
    const Span a_inverse = make(1, DType::f32), b_inverse = make(1, DType::f32);
    const Span first = make_first(k.E, R);
    if (k.weights)
      call_ = GroupedWeightGrad{.a_RM = a,
                                .b_RN = b,
                                .first_E1 = first,
                                .c_EMN = c,
                                .R = R,
                                .M = k.K,
                                .N = k.N,
                                .E = k.E,
                                .accumulate = k.accumulate,
                                .a_inverse = a_inverse,
                                .b_inverse = b_inverse};
    else
      call_ = GroupedMatmul{.a_RK = a,
                            .b_EKN = b,
                            .first_E1 = first,
                            .c_RN = c,
                            .R = R,
                            .N = k.N,
                            .K = k.K,
                            .E = k.E,
                            .trans_b = k.trans_b,
                            .a_inverse = a_inverse,
                            .b_inverse = b_inverse};
    if (!is_float8(k.a)) std::visit([](auto& m) { m.a_inverse = m.b_inverse = {}; }, call_);
  }
  const GroupedCall& get() const { return call_; }

 private:
  Span take(int64_t count, DType dtype) {
    memory_.push_back(
        std::make_unique<GemmMemory>(current_gpu(), count * dtype_size(dtype), stream_));
    return {memory_.back()->get(), count, dtype};
  }
  Span make(int64_t count, DType dtype) {
    const Span all = take(count, dtype);
    current_gpu().fill_for_timing(all, stream_);
    return all;
  }
  Span make_first(int64_t E, int64_t R) {
    std::vector<int32_t> first;
    for (int64_t e = 0; e <= E; ++e) first.push_back(int32_t(R * e / E));
    const Span to = take(E + 1, DType::i32);
    MT_CUDA(cudaMemcpyAsync(to.data, first.data(), first.size() * sizeof(int32_t),
                            cudaMemcpyHostToDevice, stream_));
    MT_CUDA(cudaStreamSynchronize(stream_));  // `first` ends here
    return to;
  }

  CUstream_st* const stream_;
  std::vector<std::unique_ptr<GemmMemory>> memory_;
  GroupedCall call_;
};

class HopperDevice final : public GroupedDevice {
 public:
  explicit HopperDevice(int device)
      : multiprocessors_(attribute_of_gpu(device, cudaDevAttrMultiProcessorCount)),
        why_none_(cuda::why_no_cutlass()) {
    const int major = attribute_of_gpu(device, cudaDevAttrComputeCapabilityMajor);
    const int minor = attribute_of_gpu(device, cudaDevAttrComputeCapabilityMinor);
    if (why_none_.empty() && (major != 9 || minor != 0))
      why_none_ = fmt::format("the GPU has compute capability {}.{}, and the kernels are for 9.0",
                              major, minor);
  }

  std::string why_no_cutlass() const override { return why_none_; }
  std::string version() const override { return cutlass_version(); }
  bool capturing(CUstream_st* stream) const override { return is_capturing(stream); }
  void run_own(const GroupedCall& call, CUstream_st* stream) const override {
    std::visit([&](const auto& m) { own_grouped_gemm(m, stream); }, call);
  }
  std::string run_cutlass(const GroupedCall& call, CUstream_st* stream) const override {
    try {
      return std::visit(
          [&](const auto& m) { return Launches(multiprocessors_, m.E, stream).run(m); }, call);
    } catch (const RunError& e) {  // no memory, for example
      if (is_capturing(stream)) throw;
      require_healthy(stream);
      return e.message();
    }
  }

  Comparison compare(const GroupedCall& call, bool keep_cutlass,
                     CUstream_st* stream) const override {
    const Span c = result_of(call);
    const int64_t N = columns_of(call), rows = c.count / N, bytes = c.count * dtype_size(c.dtype);
    // Memory is reused in the stream's order. Freeing it would wait for streams in which NCCL waits
    // for other ranks.
    std::unique_ptr<Scratch<char>> copy;
    try {
      copy = std::make_unique<Scratch<char>>(bytes, stream);
    } catch (const RunError& e) {
      require_healthy(stream);
      return {.refusal = "its result cannot be compared first: " + e.message()};
    }
    const Scratch<RowsDifference> difference(1, stream);
    copy_memory(copy->get(), c.data, bytes, stream);
    const Span other{copy->get(), c.count, c.dtype};
    if (std::string refusal = run_cutlass(with_result(call, other), stream); !refusal.empty())
      return {.refusal = std::move(refusal)};
    run_own(call, stream);
    const GroupedTolerance allowed = tolerance_of(key_of(call));
    compare_rows({.x_RN = other,
                  .y_RN = c,
                  .R = rows,
                  .N = N,
                  .relative = allowed.relative,
                  .of_row = allowed.of_row},
                 difference.get(), stream);
    RowsDifference found{};
    MT_CUDA(
        cudaMemcpyAsync(&found, difference.get(), sizeof found, cudaMemcpyDeviceToHost, stream));
    MT_CUDA(cudaStreamSynchronize(stream));
    if (keep_cutlass && found.worst <= 1) copy_memory(c.data, copy->get(), bytes, stream);
    return {.refusal = {}, .worst = found.worst, .compared = found.compared != 0};
  }

  Times time(const GroupedKey& key, int64_t rows, CUstream_st* stream) const override {
    const GroupedExample example(key, rows, stream);
    const auto cutlass = [&] {
      if (const std::string refusal = run_cutlass(example.get(), stream); !refusal.empty())
        throw RunError(refusal);
    };
    const auto own = [&] { run_own(example.get(), stream); };
    const auto measured = [&](const std::function<void()>& launch) {
      launch();  // loads its code
      const double once = current_gpu().seconds(launch, GemmTiming::kFirstCalls, stream);
      return current_gpu().seconds(launch, calls_at_once(once, GemmTiming::kFinalCalls), stream);
    };
    return {.own = measured(own), .cutlass = measured(cutlass)};
  }
  double now() const override { return current_gpu().now(); }

 private:
  const int multiprocessors_;
  std::string why_none_;
};

struct Engine {
  explicit Engine(int device) : gpu(device) {}
  HopperDevice gpu;
  GroupedChoices choices{gpu};
};

Engine& engine_here() {
  constexpr int kMaxDevices = 64;
  static std::mutex mutex;
  // These are never destroyed: at the end of the process the driver may already be unloaded.
  static auto& engines = *new std::array<std::unique_ptr<Engine>, kMaxDevices>;
  int device = 0;
  MT_CUDA(cudaGetDevice(&device));
  MT_CHECK(device < kMaxDevices, "CUDA device {}", device);
  std::lock_guard lock(mutex);
  auto& engine = engines[size_t(device)];
  if (!engine) engine = std::make_unique<Engine>(device);
  return *engine;
}

}  // namespace

bool grouped_by_cutlass(const GroupedMatmul& m, CUstream_st* stream) {
  return engine_here().choices.run(m, stream);
}
bool grouped_by_cutlass(const GroupedWeightGrad& m, CUstream_st* stream) {
  return engine_here().choices.run(m, stream);
}

namespace {
template <class Args>
std::string cutlass_alone(const Args& m, CUstream_st* stream) {
  const HopperDevice& gpu = engine_here().gpu;
  if (std::string why = gpu.why_no_cutlass(); !why.empty()) return why;
  if (!fits_cutlass(m)) return "CUTLASS has no kernel for these operands";
  return gpu.run_cutlass(m, stream);
}
}  // namespace

std::string cutlass_grouped_gemm(const GroupedMatmul& m, CUstream_st* stream) {
  return cutlass_alone(m, stream);
}
std::string cutlass_grouped_gemm(const GroupedWeightGrad& m, CUstream_st* stream) {
  return cutlass_alone(m, stream);
}

std::string unchosen_grouped_gemms() { return engine_here().choices.unchosen(); }
std::string time_grouped_gemms(const std::string& gemms, double seconds, CUstream_st* stream) {
  return engine_here().choices.time(gemms, seconds, stream);
}
void use_grouped_gemm_choices(const std::string& choices) { engine_here().choices.use(choices); }
std::string grouped_gemm_choices() { return engine_here().choices.choices(); }

}  // namespace mtrain::kernels::cuda
