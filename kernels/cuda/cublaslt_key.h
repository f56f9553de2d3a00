// The key of a cuBLASLt plan: everything that decides how a matmul is computed. This header
// includes no CUDA header.
#pragma once
#include <compare>
#include <cstdint>
#include <optional>

#include "kernels/cuda/plan_cache.h"
#include "kernels/matmul.h"

namespace mtrain::kernels::cuda {

enum class Epilogue : uint8_t { none, bias, gelu, gelu_bias, dgelu, sums };

// A row-major matrix is the same memory as its column-major transpose. The library takes
// column-major matrices; it therefore computes C^T (N, M) = op(B)^T op(A)^T. b is its first
// operand, and it transposes b if mtrain does.
struct MatmulKey {
  int64_t M, N, K;
  bool trans_a, trans_b, accumulate;
  bool fast;  // fp8's accumulation
  Epilogue epilogue;
  DType a, b, c, bias;  // all the same except for fp8; bias: see bias_type
  ScaleBlocks a_blocks, b_blocks;
  uint8_t a_alignment, b_alignment, c_alignment, bias_alignment;  // bytes, a power of 2 up to 128
  int64_t sm_margin;  // the library plans for a GPU with so many fewer multiprocessors
  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm of clang-tidy 14
  auto operator<=>(const MatmulKey&) const = default;

  int64_t a_stride() const { return trans_a ? M : K; }  // elements between rows, as stored
  int64_t b_stride() const { return trans_b ? K : N; }
};

// Returns the largest power of 2, up to 128, that divides the address.
inline uint8_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  uint8_t alignment = 128;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

// Returns the type of the bias that the library requires: the type of C, except that an fp8 GEMM
// does not support an fp32 bias.
inline DType bias_type(const Matmul& m, DType c) {
  return is_float8(m) && c == DType::f32 ? DType::bf16 : c;
}

// How partial sums of a GEMM with a split K meet: bits of the library's mask.
struct SplitSums {
  static constexpr uint32_t in_c = 1, in_fp32 = 2, in_type_of_c = 4;
};
// Returns which ways keep the partial sums in fp32 (kernels/matmul.h). A GEMM without a split needs
// none of them.
inline uint32_t fp32_split_sums(const MatmulKey& k) {
  using S = SplitSums;
  return k.c == DType::f32 ? S::in_c | S::in_fp32 | S::in_type_of_c : S::in_fp32;
}

inline Epilogue epilogue_of(const Matmul& m) {
  if (m.gelu_input_MN) return m.bias_N ? Epilogue::gelu_bias : Epilogue::gelu;
  if (m.dgelu_of_MN) return Epilogue::dgelu;
  if (m.a_sums_M) return Epilogue::sums;
  return m.bias_N ? Epilogue::bias : Epilogue::none;
}

// Returns the key of a matmul whose operands have one type or are fp8, and whose bias has
// bias_type.
inline MatmulKey key_of(const Matmul& m) {
  return {.M = m.M,
          .N = m.N,
          .K = m.K,
          .trans_a = m.trans_a,
          .trans_b = m.trans_b,
          .accumulate = m.accumulate,
          // With scales of blocks, the library always accumulates in fp32.
          .fast = is_float8(m) && m.fast && m.a_blocks == ScaleBlocks::none,
          .epilogue = epilogue_of(m),
          .a = m.a.dtype,
          .b = m.b.dtype,
          .c = m.c_MN.dtype,
          .bias = bias_type(m, m.c_MN.dtype),
          .a_blocks = m.a_blocks,
          .b_blocks = m.b_blocks,
          .a_alignment = alignment_of(m.a.data),
          .b_alignment = alignment_of(m.b.data),
          .c_alignment = alignment_of(m.c_MN.data),
          // Sums are written to our own memory.
          .bias_alignment = m.a_sums_M ? uint8_t(128) : alignment_of(m.bias_N.data),
          .sm_margin = m.sm_margin};
}

// Returns whether to request the epilogue from the library: it supports gelu's tanh form, in bf16
// and fp16, for rows of a multiple of 8 elements. It may still have no algorithm.
inline bool epilogue_fits_library(const Matmul& m) {
  const auto on_border = [](const ConstSpan& s) { return !s || alignment_of(s.data) >= 16; };
  const bool half = is_half(m.a.dtype) && m.b.dtype == m.a.dtype;
  if (!half || m.K == 0 || !on_border(m.a) || !on_border(m.b) || !on_border(m.c_MN)) return false;
  if (m.a_sums_M) return m.c_MN.dtype == DType::f32;  // the library's sums have C's type
  return m.c_MN.dtype == m.a.dtype && m.N % 8 == 0 && on_border(m.gelu_input_MN) &&
         on_border(m.dgelu_of_MN) && (!m.bias_N || m.bias_N.dtype == m.a.dtype) &&
         on_border(m.bias_N);
}

// Returns which operands must be converted to fp32 first: the library requires operands of one
// type.
struct Conversions {
  bool a, b;
};
inline Conversions conversions_of(const Matmul& m) {
  const bool mixed = m.a.dtype != m.b.dtype && !is_float8(m);
  return {mixed && m.a.dtype != DType::f32, mixed && m.b.dtype != DType::f32};
}
// Returns whether the result is computed in fp32 and then rounded: the library has no GEMM of fp32
// operands with a 16-bit result.
inline bool needs_wide_c(const Matmul& m) {
  const bool wide_operands = m.a.dtype == DType::f32 || m.b.dtype == DType::f32;
  return wide_operands && is_half(m.c_MN.dtype);
}

// Returns whether the bias must be copied first, to `type` or to an address that is a multiple of
// 16 bytes: the library reads it as vectors without checking its alignment.
inline bool must_copy_bias(const Matmul& m, DType type) {
  return m.bias_N && (m.bias_N.dtype != type || alignment_of(m.bias_N.data) < 16);
}

// Returns whether an fp8 matmul meets the library's requirements; see kernels/matmul.h.
inline bool float8_fits_library(const Matmul& m) {
  const auto on_border = [](const ConstSpan& s) { return alignment_of(s.data) >= 16; };
  const bool blocks = m.a_blocks != ScaleBlocks::none;
  return float8_fits(m) && on_border(m.a) && on_border(m.b) && on_border(m.c_MN) &&
         (!blocks || (on_border(m.a_inverse) && on_border(m.b_inverse)));
}

}  // namespace mtrain::kernels::cuda
