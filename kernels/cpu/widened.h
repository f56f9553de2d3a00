// Converts 8-bit operands to fp32: on a CPU they serve only as the reference for GPUs.
#pragma once
#include "base/span.h"
#include "base/thread_pool.h"
#include "kernels/cpu/scratch.h"

namespace mtrain::kernels::cpu {

// Returns the first `count` elements of an 8-bit operand as fp32, times `factor`, in `scratch`.
inline ConstSpan widened(ConstSpan s, int64_t count, float factor, Scratch& scratch) {
  const Span wide{scratch.floats(size_t(count)), count, DType::f32};
  with_float8(s.dtype, [&]<class T>() {
    parallel_for(count, 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) wide.as<float>()[i] = float(s.as<T>()[i]) * factor;
    });
  });
  return wide;
}

}  // namespace mtrain::kernels::cpu
