// The interfaces of a GEMM library and of a GPU. cuBLASLt and CUDA implement them
// (kernels/cuda/matmul.cpp); tests implement them without a GPU. This header therefore includes no
// CUDA header.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/cuda/cublaslt_key.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/reduce.h"

namespace mtrain::kernels::cuda {

struct GemmAlgorithm {
  // The library's own description. It can be stored; the same version of the library finds the
  // algorithm by it.
  using Bits = std::array<uint64_t, 8>;
  Bits bits{};
  int64_t workspace = 0;    // bytes
  uint32_t split_sums = 0;  // one bit of SplitSums, or 0: K is not split
};

struct GemmAnswer {
  // refused: the library reports that it does not support the call, and has enqueued nothing.
  enum class Status : uint8_t { done, refused, failed } status = Status::done;
  std::string text{};  // the library's own message, unless done
};

// The library's description of all calls of one key.
class GemmProblem {
 public:
  virtual ~GemmProblem() = default;
  struct Offer {
    std::vector<GemmAlgorithm> algorithms;  // the best first, by the library's heuristics
    std::string why_none;
  };
  // Neither function returns an algorithm that needs more than kMatmulWorkspace.
  virtual Offer offer(int most) const = 0;
  virtual std::optional<GemmAlgorithm> find(const GemmAlgorithm::Bits& bits) const = 0;
  // `bias` is m's bias, or memory for the sums of op(A), which is overwritten.
  virtual GemmAnswer run(const Matmul& m, const void* bias, const GemmAlgorithm& algorithm,
                         void* workspace, CUstream_st* stream) const = 0;
};

class GemmApi {
 public:
  virtual ~GemmApi() = default;
  virtual std::string version() const = 0;  // version of the library, and the GPU's name
  virtual std::shared_ptr<const GemmProblem> describe(const MatmulKey& key) const = 0;
};

// The current GPU: kernels and memory in a stream's order.
class GemmDevice {
 public:
  virtual ~GemmDevice() = default;
  virtual void* take(size_t bytes, CUstream_st* stream) const = 0;
  virtual void give(void* memory, CUstream_st* stream) const noexcept = 0;
  virtual void run(const Cast& args, CUstream_st* stream) const = 0;
  virtual void run(const Fill& args, CUstream_st* stream) const = 0;
  virtual void run(const Add& args, CUstream_st* stream) const = 0;
  virtual void run(const AddRow& args, CUstream_st* stream) const = 0;
  virtual void run(const ColumnSum& args, CUstream_st* stream) const = 0;
  virtual void run(const GeluForward& args, CUstream_st* stream) const = 0;
  virtual void run(const GeluBackward& args, CUstream_st* stream) const = 0;
  virtual bool capturing(CUstream_st* stream) const = 0;
  // Called when the library has refused a call. Throws RunError if the GPU has failed: such a
  // failure is not a refusal.
  virtual void require_healthy(CUstream_st* stream) const = 0;
  // Fills memory of any element type with numbers like those of a training: the values affect a
  // GPU's clocks.
  virtual void fill_for_timing(const Span& memory, CUstream_st* stream) const = 0;
  virtual int64_t cache_bytes() const = 0;  // of the L2 cache
  // Returns the time of one of `calls` calls of `launch` in a row, more than 0. The host waits.
  virtual double seconds(const std::function<void()>& launch, int calls,
                         CUstream_st* stream) const = 0;
  virtual double now() const = 0;  // seconds of a clock that never goes back
};

}  // namespace mtrain::kernels::cuda
