#include "comm/reduce.h"

#include <algorithm>
#include <type_traits>

#include "base/error.h"

namespace mtrain::comm {

namespace {

constexpr int64_t kBlock = 4096;  // elements: the sums stay in the first-level cache

// The type of a sum of T: bf16 and f16 are summed in fp32.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, bf16> || std::is_same_v<T, f16>, float, T>;

template <class T>
void reduce(const std::vector<const std::byte*>& parts, Span out, Reduce op) {
  MT_CHECK(op != Reduce::average || !std::is_integral_v<T>, "average of {}", dtype_name(out.dtype));
  Sum<T> sums[kBlock];
  for (int64_t begin = 0; begin < out.count; begin += kBlock) {
    const int64_t n = std::min(kBlock, out.count - begin);
    for (size_t p = 0; p < parts.size(); ++p) {
      const T* part = reinterpret_cast<const T*>(parts[p]) + begin;
      if (p == 0)
        for (int64_t i = 0; i < n; ++i) sums[i] = Sum<T>(part[i]);
      else if (op == Reduce::max)
        for (int64_t i = 0; i < n; ++i) sums[i] = std::max(sums[i], Sum<T>(part[i]));
      else
        for (int64_t i = 0; i < n; ++i) sums[i] += Sum<T>(part[i]);
    }
    if constexpr (!std::is_integral_v<T>)
      if (op == Reduce::average)
        for (int64_t i = 0; i < n; ++i) sums[i] *= Sum<T>(1) / Sum<T>(parts.size());
    T* to = out.as<T>() + begin;
    for (int64_t i = 0; i < n; ++i) to[i] = T(sums[i]);
  }
}

}  // namespace

void reduce_parts(const std::vector<const std::byte*>& parts, Span out, Reduce op) {
  switch (out.dtype) {
    case DType::f32: return reduce<float>(parts, out, op);
    case DType::bf16: return reduce<bf16>(parts, out, op);
    case DType::f16: return reduce<f16>(parts, out, op);
    case DType::f64: return reduce<double>(parts, out, op);
    case DType::i32: return reduce<int32_t>(parts, out, op);
    case DType::i64: return reduce<int64_t>(parts, out, op);
    default: break;
  }
  throw BugError(fmt::format("a reduction of {}", dtype_name(out.dtype)));
}

void average_sum(Span sum, int ranks) {
  const auto scale = [&](auto* x) {
    using T = std::remove_pointer_t<decltype(x)>;
    for (int64_t i = 0; i < sum.count; ++i) x[i] = T(Sum<T>(x[i]) * (Sum<T>(1) / Sum<T>(ranks)));
  };
  switch (sum.dtype) {
    case DType::f32: return scale(sum.as<float>());
    case DType::bf16: return scale(sum.as<bf16>());
    case DType::f16: return scale(sum.as<f16>());
    case DType::f64: return scale(sum.as<double>());
    default: throw BugError(fmt::format("average of {}", dtype_name(sum.dtype)));
  }
}

}  // namespace mtrain::comm
