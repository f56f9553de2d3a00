// On a CPU 8-bit tensors serve only as the reference for GPUs; plain loops suffice.
#include "kernels/fp8.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/thread_pool.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/float8_result.h"
#include "kernels/cpu/fp8_rounding.h"

namespace mtrain::kernels::cpu {
namespace {

constexpr int64_t kGrain = 1 << 14;

void check_one(const char* op, const char* name, const ConstSpan& s) {
  check(op, name, s, 1, DType::f32);
}

// The largest |x| of the finite elements. Threads may merge their maxima in any order.
class Largest {
 public:
  void meet(float size) {
    float known = largest_.load(std::memory_order_relaxed);
    while (size > known && !largest_.compare_exchange_weak(known, size)) {
    }
  }
  float get() const { return largest_; }

 private:
  std::atomic<float> largest_ = 0;
};

struct Scales {
  float scale, inverse;
};
Scales scales_of(float amax, DType type, int margin, float otherwise) {
  float scale = otherwise;
  if (amax > 0) {
    // For the smallest amaxes the scale would overflow fp32, or its inverse underflow.
    scale = std::min(largest_float8(type) / amax * std::ldexp(1.0f, -margin), 0x1p126f);
  }
  return {scale, 1.0f / scale};
}

}  // namespace

void run(const Amax& a) {
  check_one("amax", "amax", a.amax);
  if (a.scale) check_one("amax", "scale", a.scale);
  if (a.scale) check_one("amax", "inverse", a.inverse);
  Largest largest;
  with_float(a.x.dtype, [&]<class T>() {
    parallel_for(a.x.count, kGrain, [&](int64_t begin, int64_t end) {
      float most = 0;
      for (int64_t i = begin; i < end; ++i) most = std::max(most, finite_size(a.x.as<T>()[i]));
      largest.meet(most);
    });
  });
  float* amax = a.amax.as<float>();
  *amax = largest.get();
  if (!a.scale) return;
  const Scales s = scales_of(*amax, a.type, a.margin, 1);
  *a.scale.as<float>() = s.scale;
  *a.inverse.as<float>() = s.inverse;
}

void raise_amax(const Span& amax, const ConstSpan& x, int64_t rows, int64_t width, int64_t stride) {
  if (!amax) return;
  Largest largest;
  with_float(x.dtype, [&]<class T>() {
    parallel_for(rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1)),
                 [&](int64_t begin, int64_t end) {
                   float most = 0;
                   for (int64_t r = begin; r < end; ++r)
                     for (int64_t i = 0; i < width; ++i)
                       most = std::max(most, finite_size(x.as<T>()[r * stride + i]));
                   largest.meet(most);
                 });
  });
  *amax.as<float>() = std::max(*amax.as<float>(), largest.get());
}

void run(const ScaleFromAmax& a) {
  for (const Span& s : {a.amax, a.scale, a.inverse}) check_one("scale", "amax or a scale", s);
  float* amax = a.amax.as<float>();
  const Scales s = scales_of(*amax, a.type, a.margin, 1);
  *amax = 0;
  *a.scale.as<float>() = s.scale;
  *a.inverse.as<float>() = s.inverse;
}

void run(const Quantize& a) {
  check_one("quantize", "scale", a.scale);
  if (a.amax) check_one("quantize", "amax", a.amax);
  check_holds("quantize", "x", a.x_TN, a.T * a.N);
  if (a.y_TN) check_holds("quantize", "y", a.y_TN, a.T * a.N);
  if (a.y_NT) check_holds("quantize", "the transpose", a.y_NT, a.N * a.stride);
  MT_CHECK(a.y_TN || a.y_NT, "quantize: nothing to write");
  MT_CHECK(!a.y_NT || (a.stride >= a.T && a.stride % 16 == 0), "quantize: rows of {} for {}",
           a.stride, a.T);
  MT_CHECK(!a.y_TN || !a.y_NT || a.y_TN.dtype == a.y_NT.dtype, "quantize: to two types");
  const float scale = *a.scale.as<float>();
  Largest largest;
  with_float8(a.y_TN ? a.y_TN.dtype : a.y_NT.dtype, [&]<class Y>() {
    with_float(a.x_TN.dtype, [&]<class T>() {
      const T* x = a.x_TN.as<T>();
      Y *y = a.y_TN.as<Y>(), *transposed = a.y_NT.as<Y>();
      parallel_for(a.T, std::max<int64_t>(1, kGrain / std::max<int64_t>(a.N, 1)),
                   [&](int64_t begin, int64_t end) {
                     float most = 0;
                     for (int64_t t = begin; t < end; ++t)
                       for (int64_t n = 0; n < a.N; ++n) {
                         const T v = x[t * a.N + n];
                         const Y q = quantized<Y>(v, scale);
                         if (y) y[t * a.N + n] = q;
                         if (transposed) transposed[n * a.stride + t] = q;
                         most = std::max(most, finite_size(v));
                       }
                     largest.meet(most);
                   });
      for (int64_t n = 0; transposed && n < a.N; ++n)
        std::fill(transposed + n * a.stride + a.T, transposed + (n + 1) * a.stride, Y());
    });
  });
  if (a.amax) *a.amax.as<float>() = std::max(*a.amax.as<float>(), largest.get());
}

void run(const TransposeFloat8& a) {
  check_holds("transpose", "x", a.x_TN, a.T * a.N);
  check("transpose", "y", a.y_NT, a.N * a.stride, a.x_TN.dtype);
  MT_CHECK(is_float8(a.x_TN.dtype), "transpose: x is {}", dtype_name(a.x_TN.dtype));
  MT_CHECK(a.stride >= a.T && a.stride % 16 == 0, "transpose: rows of {} for {}", a.stride, a.T);
  const auto* x = static_cast<const uint8_t*>(a.x_TN.data);
  auto* y = static_cast<uint8_t*>(a.y_NT.data);
  parallel_for(a.N, std::max<int64_t>(1, kGrain / std::max<int64_t>(a.stride, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t n = begin; n < end; ++n)
                   for (int64_t t = 0; t < a.stride; ++t)
                     y[n * a.stride + t] = t < a.T ? x[t * a.N + n] : 0;
               });
}

void run(const UpdateScales& a) {
  check("scales", "amax", a.amax_C, a.C, DType::f32);
  check("scales", "history", a.history_CL, a.C * a.L, DType::f32);
  check("scales", "scale", a.scale_C, a.C, DType::f32);
  check("scales", "inverse", a.inverse_C, a.C, DType::f32);
  if (a.grad_scale) check("scales", "grad_scale", a.grad_scale, 1, DType::f32);
  MT_CHECK(a.place >= 0 && a.place < a.L, "scales: place {} of {}", a.place, a.L);
  const bool skipped = a.grad_scale && !std::isfinite(*a.grad_scale.as<float>());
  for (int64_t c = 0; c < a.C; ++c) {
    float &amax = a.amax_C.as<float>()[c], &scale = a.scale_C.as<float>()[c];
    float* history = a.history_CL.as<float>() + c * a.L;
    if (skipped && (!std::isfinite(amax) || *std::max_element(history, history + a.L) > 0)) {
      amax = 0;
      continue;
    }
    history[a.place] = amax;
    const float decides = a.most_recent ? amax : *std::max_element(history, history + a.L);
    amax = 0;
    const Scales s = scales_of(decides, a.type, a.margin, scale);
    scale = s.scale;
    a.inverse_C.as<float>()[c] = s.inverse;
  }
}

}  // namespace mtrain::kernels::cpu
