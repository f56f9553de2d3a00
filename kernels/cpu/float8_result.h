// Results in 8 bits. On a CPU these serve only as the reference for GPUs: a kernel first computes
// the float result, which Quantize then converts.
#pragma once
#include "kernels/cpu/check.h"
#include "kernels/cpu/scratch.h"
#include "kernels/fp8.h"

namespace mtrain::kernels::cpu {

// Checks a result of type `dtype`, or in 8 bits if there is a scale.
inline void check_result(const char* op, const char* name, const ConstSpan& s, int64_t need,
                         DType dtype, const ConstSpan& scale) {
  if (!scale) return check(op, name, s, need, dtype);
  check(op, "scale", scale, 1, DType::f32);
  check_holds(op, name, s, need);
  MT_CHECK(is_float8(s.dtype), "{}: {} is {} with a scale, must be an 8-bit float", op, name,
           dtype_name(s.dtype));
}

// Raises amax[0] to the largest finite |x| of `rows` rows of `width` elements, `stride` apart, if
// amax is present.
void raise_amax(const Span& amax, const ConstSpan& x, int64_t rows, int64_t width, int64_t stride);

// A float form of `result` in separate memory, or `result` itself if there is no scale.
class FloatResult {
 public:
  FloatResult(const Span& result, int64_t count, DType dtype, const ConstSpan& scale)
      : result_(result), scale_(scale) {
    float_ = scale ? Span{memory_.bytes(size_t(count * dtype_size(dtype))), count, dtype} : result;
  }
  const Span& get() const { return float_; }
  // Writes (T, N) in 8 bits, if there is a scale.
  void quantize(int64_t T, int64_t N, const Span& amax) const {
    if (scale_)
      run(Quantize{.x_TN = float_, .scale = scale_, .y_TN = result_, .amax = amax, .T = T, .N = N});
  }

 private:
  Scratch memory_;
  Span result_, float_;
  ConstSpan scale_;
};

}  // namespace mtrain::kernels::cpu
