// On a CPU 8-bit tensors serve only as the reference for GPUs; plain loops suffice.
#include "kernels/fp8_blocks.h"

#include <algorithm>
#include <bit>

#include "base/thread_pool.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/fp8_rounding.h"

namespace mtrain::kernels::cpu {
namespace {

// Returns the smallest e with amax <= largest 2^e, within the range of an inverse and a scale; 0 if
// amax is 0.
int exponent_of(float amax, float largest) {
  if (!(amax > 0)) return 0;
  const auto bits = std::bit_cast<uint32_t>(amax / largest);
  return std::max(int(bits >> 23) - 127 + ((bits & 0x7fffff) != 0 ? 1 : 0), -126);
}

void put_inverse(Span inverse, int64_t at, int exponent) {
  if (inverse.dtype == DType::u8)
    inverse.as<uint8_t>()[at] = uint8_t(exponent + 127);
  else
    inverse.as<float>()[at] = std::bit_cast<float>(uint32_t(exponent + 127) << 23);
}

// An 8-bit matrix (R, K). Its first filled_K columns have elements; the rest is 0.
struct Result {
  Span y, inverse;
  int64_t R, K, filled_K;
};

// `at` returns element (row, k) of the matrix to quantize.
template <class Y, class At>
void quantize(const Result& to, ScaleBlocks blocks, DType type, const At& at) {
  const int64_t length = block_length(blocks), height = blocks == ScaleBlocks::square_128 ? 128 : 1;
  for (int64_t i = 0; i < block_scales(blocks, to.R, to.K); ++i) put_inverse(to.inverse, i, 0);
  parallel_for(blocks_over(to.R, height), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t block = 0; block < blocks_over(to.K, length); ++block) {
        const int64_t first = r * height, last = std::min(to.R, first + height),
                      left = block * length, right = std::min(to.K, left + length),
                      filled = std::min(right, to.filled_K);
        float amax = 0;
        for (int64_t row = first; row < last; ++row)
          for (int64_t k = left; k < filled; ++k) amax = std::max(amax, finite_size(at(row, k)));
        const int exponent = exponent_of(amax, largest_float8(type));
        const float scale = std::bit_cast<float>(uint32_t(127 - exponent) << 23);
        put_inverse(to.inverse, block_scale_index(blocks, to.R, to.K, first, block), exponent);
        for (int64_t row = first; row < last; ++row)
          for (int64_t k = left; k < right; ++k)
            to.y.as<Y>()[row * to.K + k] = k < filled ? quantized<Y>(at(row, k), scale) : Y();
      }
  });
}

void check_arguments(const QuantizeBlocks& a) {
  const char* op = "quantize_blocks";
  check_holds(op, "x", a.x_TN, a.T * a.N);
  MT_CHECK(a.blocks != ScaleBlocks::none, "quantize_blocks: no blocks");
  MT_CHECK(a.y_TN || a.y_NT, "quantize_blocks: nothing to write");
  MT_CHECK(!a.y_TN || !a.y_NT || a.y_TN.dtype == a.y_NT.dtype, "quantize_blocks: to two types");
  const DType scales = block_scale_type(a.blocks);
  if (a.y_TN) {
    check_holds(op, "y", a.y_TN, a.T * a.N);
    check(op, "y's inverses", a.inverse_TN, block_scales(a.blocks, a.T, a.N), scales);
  }
  if (!a.y_NT) return;
  MT_CHECK(a.stride >= a.T && a.stride % block_length(a.blocks) == 0,
           "quantize_blocks: rows of {} for {}", a.stride, a.T);
  check_holds(op, "the transpose", a.y_NT, a.N * a.stride);
  check(op, "the transpose's inverses", a.inverse_NT, block_scales(a.blocks, a.N, a.stride),
        scales);
}

constexpr ScaleBlocks kSquare = ScaleBlocks::square_128;

// Calls f(i, block) for every element i of a part of a matrix (R, K) that begins with element
// `begin`. `block` is the index of its block's scale.
template <class F>
void for_part(int64_t begin, int64_t count, int64_t R, int64_t K, const F& f) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = (begin + i) / K, column = (begin + i) % K;
    f(i, block_scale_index(kSquare, R, K, row, column / 128));
  }
}

void check_part(const char* op, ConstSpan x, ConstSpan scales, int64_t begin, int64_t R,
                int64_t K) {
  MT_CHECK(begin >= 0 && begin + x.count <= R * K, "{}: elements [{}, {}) of {} x {}", op, begin,
           begin + x.count, R, K);
  check(op, "scales of blocks", scales, block_scales(kSquare, R, K), DType::f32);
}

}  // namespace

void run(const AmaxOfPart& a) {
  check_part("amax_of_part", a.x, a.amax, a.begin, a.R, a.K);
  float* const amax = a.amax.as<float>();
  with_float(a.x.dtype, [&]<class T>() {
    const T* const x = a.x.as<T>();
    for_part(a.begin, a.x.count, a.R, a.K, [&](int64_t i, int64_t block) {
      amax[block] = std::max(amax[block], finite_size(x[i]));
    });
  });
}

void run(const InversesOfAmax& a) {
  const float* const amax = a.inverse.as<float>();
  for (int64_t i = 0; i < a.inverse.count; ++i)
    put_inverse(a.inverse, i, exponent_of(amax[i], largest_float8(a.type)));
}

void run(const QuantizePart& a) {
  check_part("quantize_part", a.x, a.inverse, a.begin, a.R, a.K);
  const float* const inverse = a.inverse.as<float>();
  with_float8(a.y.dtype, [&]<class Y>() {
    with_float(a.x.dtype, [&]<class T>() {
      const T* const x = a.x.as<T>();
      for_part(a.begin, a.x.count, a.R, a.K, [&](int64_t i, int64_t block) {
        a.y.as<Y>()[i] = quantized<Y>(x[i], 1.0f / inverse[block]);  // exact
      });
    });
  });
}

void run(const TransposeInverses& a) {
  const float* const from = a.inverse_TN.as<float>();
  float* const to = a.inverse_NT.as<float>();
  std::fill_n(to, a.inverse_NT.count, 1.0f);
  for (int64_t row = 0; row < a.T; row += 128)
    for (int64_t column = 0; column < a.N; column += 128)
      to[block_scale_index(kSquare, a.N, a.stride, column, row / 128)] =
          from[block_scale_index(kSquare, a.T, a.N, row, column / 128)];
}

void run(const QuantizeBlocks& a) {
  check_arguments(a);
  const DType type = a.y_TN ? a.y_TN.dtype : a.y_NT.dtype;
  with_float8(type, [&]<class Y>() {
    with_float(a.x_TN.dtype, [&]<class T>() {
      const T* x = a.x_TN.as<T>();
      if (a.y_TN)
        quantize<Y>({a.y_TN, a.inverse_TN, a.T, a.N, a.N}, a.blocks, type,
                    [&](int64_t row, int64_t k) { return x[row * a.N + k]; });
      if (a.y_NT)
        quantize<Y>({a.y_NT, a.inverse_NT, a.N, a.stride, a.T}, a.blocks, type,
                    [&](int64_t row, int64_t k) { return x[k * a.N + row]; });
    });
  });
}

}  // namespace mtrain::kernels::cpu
