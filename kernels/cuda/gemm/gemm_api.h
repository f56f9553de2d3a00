// What GEMMs need of a library, and of a GPU beside it. cuBLASLt and CUDA implement these
// interfaces (kernels/cuda/matmul.cpp); tests implement them without a GPU, so that this header
// includes nothing of CUDA.
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
  // The library's own description. It can be kept, and found again by the same version.
  using Bits = std::array<uint64_t, 8>;
  Bits bits{};
  int64_t workspace = 0;  // bytes
};

struct GemmAnswer {
  // refused: the library says that it cannot do this, and has enqueued nothing.
  enum class Status : uint8_t { done, refused, failed } status = Status::done;
  std::string text{};  // the library's own message, unless done
};

// All calls of one key, as the library knows them.
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
  // `bias` is m's bias, or memory for the sums of op(A), which are overwritten.
  virtual GemmAnswer run(const Matmul& m, const void* bias, const GemmAlgorithm& algorithm,
                         void* workspace, CUstream_st* stream) const = 0;
};

class GemmApi {
 public:
  virtual ~GemmApi() = default;
  virtual std::string version() const = 0;  // of the library, and the GPU's name
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
  // Called when the library has refused a call. Throws RunError where the GPU has failed, so that
  // such a failure is not taken for a refusal.
  virtual void require_healthy(CUstream_st* stream) const = 0;
  // Fills memory of any element type with numbers like a training's: they change a GPU's clocks.
  virtual void fill_for_timing(const Span& memory, CUstream_st* stream) const = 0;
  // Returns the time of one call of `launch`, of several in a row. The host waits.
  virtual double seconds(const std::function<void()>& launch, CUstream_st* stream) const = 0;
  virtual double now() const = 0;  // seconds of a clock that never goes back
};

}  // namespace mtrain::kernels::cuda
