// Helpers of bench_cuda: the shapes, and a class that times kernels. Each call is timed by events,
// with no data of the round before in the L2 cache. Times are medians over rounds, which are fewer
// for slow kernels.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/fp8.h"
#include "kernels/fp8_blocks.h"
#include "kernels/gemm_choices.h"
#include "kernels/grouped_matmul.h"
#include "kernels/matmul.h"
#include "kernels/matmul_unfused.h"
#include "kernels/norm.h"
#include "kernels/permute.h"
#include "kernels/reduce.h"
#include "kernels/rope.h"

namespace mtrain::kernels {

struct Model {
  const char* name;
  int64_t H, F, V, A, G, D;
};
constexpr Model kModels[] = {{"1.5B", 1536, 8960, 151936, 12, 2, 128},
                             {"8B", 4096, 14336, 128256, 32, 8, 128}};
constexpr int64_t kTokens = 8192;

inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw RunError(cudaGetErrorString(status));
}

class Gpu {
 public:
  explicit Gpu(int rounds) : rounds_(rounds) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
    keep_pool();
    constexpr size_t kFarBeyondL2 = 256 << 20;
    check(cudaMalloc(&other_, kFarBeyondL2));
    check(cudaMemset(other_, 0, kFarBeyondL2));
    check(cudaMalloc(&other_sum_, sizeof(double)));
    others_ = {.x = {other_, int64_t(kFarBeyondL2 / sizeof(float)), DType::f32},
               .out = {other_sum_, 1, DType::f64}};
  }
  CUstream_st* stream() const { return stream_; }

  // Normal numbers, since the values affect the GPU's clocks. Freed by free_all().
  Span normal(int64_t count, DType dtype, float std = 1) {
    const Span wide = raw(count, DType::f32);
    cuda::run(FillNormal{.y = wide, .key = ++key_, .std = std}, stream_);
    if (dtype == DType::f32) return wide;
    const Span narrow = raw(count, dtype);
    cuda::run(Cast{.x = wide, .y = narrow}, stream_);
    check(cudaStreamSynchronize(stream_));
    check(cudaFree(wide.data));
    taken_.erase(std::find(taken_.begin(), taken_.end(), wide.data));
    return narrow;
  }
  // Normal numbers of 8 bits.
  Span float8(int64_t count, DType dtype) {
    const Span wide = raw(count, DType::f32), narrow = raw(count, dtype), scale = filled(1, 1);
    cuda::run(FillNormal{.y = wide, .key = ++key_, .std = 1}, stream_);
    cuda::run(Quantize{.x_TN = wide, .scale = scale, .y_TN = narrow, .T = 1, .N = count}, stream_);
    check(cudaStreamSynchronize(stream_));
    check(cudaFree(wide.data));
    taken_.erase(std::find(taken_.begin(), taken_.end(), wide.data));
    return narrow;
  }
  Span filled(int64_t count, float value) {  // fp32
    const Span s = raw(count, DType::f32);
    cuda::run(Fill{.y = s, .value = value}, stream_);
    return s;
  }
  Span ids(int64_t count, int64_t below) {
    std::vector<int32_t> host(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) host[size_t(i)] = int32_t(i * 7919 % below);
    return upload(host);
  }
  Span upload(const std::vector<int32_t>& host) {
    const Span s = raw(int64_t(host.size()), DType::i32);
    // Copies in the order of the stream, since cudaMemcpy may return before the last bytes are
    // there.
    check(cudaMemcpyAsync(s.data, host.data(), size_t(s.bytes()), cudaMemcpyHostToDevice, stream_));
    check(cudaStreamSynchronize(stream_));
    return s;
  }
  Span raw(int64_t count, DType dtype) {
    Span s{nullptr, count, dtype};
    check(cudaMalloc(&s.data, size_t(std::max<int64_t>(1, s.bytes()))));
    taken_.push_back(s.data);
    return s;
  }
  void free_all() { free_but({}); }
  void free_but(const std::vector<const void*>& kept) {
    check(cudaStreamSynchronize(stream_));
    std::vector<void*> left;
    for (void* p : taken_)
      if (std::find(kept.begin(), kept.end(), p) != kept.end())
        left.push_back(p);
      else
        check(cudaFree(p));
    taken_ = left;
  }
  // Returns whether everything could be measured.
  bool measure(const std::function<void()>& kernels) {
    try {
      kernels();
      return true;
    } catch (const std::exception& e) {
      std::printf("FAILED: %s\n", e.what());
      free_all();  // throws if the GPU can no longer be used
      return false;
    }
  }

  double median_seconds(const std::function<void()>& call) {
    constexpr double kMaxSeconds = 0.25;
    constexpr size_t kMinRounds = 3;
    std::vector<double> seconds;
    double all = 0;
    for (int round = -3; round < rounds_; ++round) {
      if (all > kMaxSeconds && seconds.size() >= kMinRounds) break;
      // Also lets the host run ahead of the GPU, so that launches are not timed.
      cuda::run(others_, stream_);
      check(cudaEventRecord(begin_, stream_));
      call();
      check(cudaEventRecord(end_, stream_));
      check(cudaEventSynchronize(end_));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin_, end_));
      if (round < 0) continue;
      seconds.push_back(double(ms) * 1e-3);
      all += seconds.back();
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  template <class Args>
  void bandwidth(const char* name, const Args& args, double bytes) {
    const double s = median_seconds([&] { cuda::run(args, stream_); });
    std::printf("%-28s %8.1f us %8.0f GB/s  %5.1f %% of a copy\n", name, s * 1e6, bytes / s * 1e-9,
                100 * bytes / s / copy_);
  }
  // Calls `by` after the measurement; it returns the name of the library or kernel that computed.
  template <class Args>
  void arithmetic(const std::string& name, const Args& args, double flops,
                  const std::function<std::string()>& by = {}) {
    arithmetic_of(
        name, [&] { cuda::run(args, stream_); }, flops, by);
  }
  void arithmetic_of(const std::string& name, const std::function<void()>& call, double flops,
                     const std::function<std::string()>& by = {}) {
    const double s = median_seconds(call);
    std::printf("%-28s %8.1f us %8.0f TFLOP/s", name.c_str(), s * 1e6, flops / s * 1e-12);
    std::printf("%s\n", by ? ("  (" + by() + ")").c_str() : "");
  }
  // A GEMM by the library's first algorithm, and by the one that is chosen by measuring.
  void gemm(const std::string& name, const Matmul& m, double flops) {
    constexpr double kMaxSeconds = 60;  // for choosing by measurement
    arithmetic(name, m, flops);
    cuda::use_gemm_choices(cuda::time_gemms(cuda::unchosen_gemms(), kMaxSeconds, stream_));
    arithmetic(name + ", chosen", m, flops);
  }
  void measure_copy() {
    const Span from = raw(int64_t(1) << 30, DType::u8), to = raw(int64_t(1) << 30, DType::u8);
    const double s = median_seconds([&] {
      check(cudaMemcpyAsync(to.data, from.data, size_t(from.count), cudaMemcpyDeviceToDevice,
                            stream_));
    });
    copy_ = 2 * double(from.count) / s;
    std::printf("%-28s %8.1f us %8.0f GB/s\n", "copy of 1 GiB", s * 1e6, copy_ * 1e-9);
    free_all();
  }

 private:
  // The workspace of a kernel serves the next round.
  static void keep_pool() {
    int device = 0;
    cudaMemPool_t pool = nullptr;
    uint64_t all = UINT64_MAX;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetDefaultMemPool(&pool, device));
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
  }

  int rounds_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::vector<void*> taken_;
  void *other_ = nullptr, *other_sum_ = nullptr;
  SumSquares others_;  // evicts other data from the L2 cache
  uint64_t key_ = 0;
  double copy_ = 1;  // bytes per second, read and written
};

// --- cuda_bench_products.cpp ---
void bench_attention(Gpu& gpu, const Model& m, DType t, int64_t S, bool packed);
void bench_matmul(Gpu& gpu, const Model& m, DType t);
void bench_epilogues(Gpu& gpu, const Model& m);
void bench_grouped_gemms(Gpu& gpu);  // of the experts of Qwen3-30B-A3B
// --- cuda_bench_float8.cpp ---
// capability: 10 * the major number + the minor one.
void bench_float8_gemms(Gpu& gpu, const Model& m, int capability);

}  // namespace mtrain::kernels
