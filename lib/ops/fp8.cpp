#include "kernels/fp8.h"

#include "base/math.h"
#include "kernels/fp8_blocks.h"
#include "kernels/matmul.h"
#include "ops/enqueue.h"
#include "ops/ops.h"

MT_KERNEL(Amax)
MT_KERNEL(ScaleFromAmax)
MT_KERNEL(Quantize)
MT_KERNEL(TransposeFloat8)
MT_KERNEL(QuantizeBlocks)
MT_KERNEL(UpdateScales)
MT_KERNEL(Matmul)

namespace mtrain::ops {

namespace {

Tensor one(Stream& stream) {
  return Tensor::empty(stream, {1}, DType::f32, device::MemoryCategory::buffers);
}

Tensor transpose_of(Stream& stream, const Tensor& x_TN, DType type) {
  MT_CHECK(x_TN.shape().rank() == 2, "quantize: x is {}", x_TN.shape().str());
  return Tensor::empty(stream, {x_TN.dim(1), round_up(x_TN.dim(0), kFloat8Multiple)}, type);
}

Float8Tensor transposed_blocks(Stream& stream, const Tensor& x_TN, DType type, ScaleBlocks blocks) {
  return blocks_of(stream, x_TN.dim(1), round_up(x_TN.dim(0), block_length(blocks)), type, blocks);
}

}  // namespace

Float8Scale current_scale(Stream& stream, const Tensor& x, DType type, int margin) {
  const Float8Scale s{one(stream), one(stream)};
  current_scale_into(stream, x, type, margin, s);
  return s;
}

void current_scale_into(Stream& stream, const Tensor& x, DType type, int margin,
                        const Float8Scale& s) {
  MT_FLOAT("current_scale", x);
  MT_SHAPE("current_scale", s.scale, {1});
  MT_SHAPE("current_scale", s.inverse, {1});
  const Tensor amax = one(stream);
  enqueue(stream, {.name = "amax", .reads = {x}, .writes = {amax, s.scale, s.inverse}},
          kernels::Amax{.x = x,
                        .amax = amax,
                        .scale = s.scale,
                        .inverse = s.inverse,
                        .type = type,
                        .margin = margin});
}

Float8Scale scale_from_amax(Stream& stream, const Tensor& amax, DType type, int margin) {
  MT_SHAPE("scale_from_amax", amax, {1});
  MT_DTYPE("scale_from_amax", amax, DType::f32);
  const Float8Scale s{one(stream), one(stream)};
  enqueue(
      stream, {.name = "scale_from_amax", .reads = {amax}, .writes = {amax, s.scale, s.inverse}},
      kernels::ScaleFromAmax{
          .amax = amax, .scale = s.scale, .inverse = s.inverse, .type = type, .margin = margin});
  return s;
}

void quantize_into(Stream& stream, const Tensor& x_TN, const Float8Scale& scale, const Tensor& y_TN,
                   const Tensor& y_NT, const Tensor& amax) {
  MT_CHECK(x_TN.shape().rank() == 2, "quantize: x is {}", x_TN.shape().str());
  MT_FLOAT("quantize", x_TN);
  MT_CHECK(y_TN || y_NT, "quantize: neither y_TN nor y_NT is given");
  const int64_t T = x_TN.dim(0), N = x_TN.dim(1), stride = round_up(T, kFloat8Multiple);
  if (y_TN) MT_SHAPE("quantize", y_TN, {T, N});
  if (y_NT) MT_SHAPE("quantize", y_NT, {N, stride});
  if (y_TN && y_NT) MT_DTYPE("quantize", y_NT, y_TN.dtype());
  std::vector<device::Access> writes;
  for (const Tensor& y : {y_TN, y_NT}) {
    if (!y) continue;
    MT_CHECK(is_float8(y.dtype()), "quantize: the result is {}, expected an 8-bit float",
             dtype_name(y.dtype()));
    writes.push_back(y);
  }
  if (x_TN.count() == 0) return;  // experts without a row
  if (amax) writes.push_back(amax);
  enqueue(stream,
          {.name = "quantize", .reads = {x_TN, scale.scale, amax}, .writes = std::move(writes)},
          kernels::Quantize{.x_TN = x_TN,
                            .scale = scale.scale,
                            .y_TN = y_TN,
                            .y_NT = y_NT,
                            .amax = amax,
                            .T = T,
                            .N = N,
                            .stride = y_NT ? stride : 0});
}

Float8Tensor quantize(Stream& stream, const Tensor& x_TN, DType type, const Float8Scale& scale,
                      const Tensor& amax) {
  const Tensor y = Tensor::empty(stream, x_TN.shape(), type);
  quantize_into(stream, x_TN, scale, y, {}, amax);
  return {y, scale.inverse};
}

Float8Tensor quantize_transposed(Stream& stream, const Tensor& x_TN, DType type,
                                 const Float8Scale& scale, const Tensor& amax) {
  const Tensor y = transpose_of(stream, x_TN, type);
  quantize_into(stream, x_TN, scale, {}, y, amax);
  return {y, scale.inverse};
}

Float8Tensor transpose_float8(Stream& stream, const Float8Tensor& x_TN) {
  const Tensor& x = x_TN.data;
  MT_CHECK(is_float8(x.dtype()) && x_TN.blocks == ScaleBlocks::none,
           "transpose_float8: x is {}, expected 8 bits under one scale", dtype_name(x.dtype()));
  const Tensor y = transpose_of(stream, x, x.dtype());
  enqueue(stream, {.name = "transpose_float8", .reads = {x}, .writes = {y}},
          kernels::TransposeFloat8{
              .x_TN = x, .y_NT = y, .T = x.dim(0), .N = x.dim(1), .stride = y.dim(1)});
  return {y, x_TN.inverse};
}

Float8Pair quantize_both(Stream& stream, const Tensor& x_TN, DType type, const Float8Scale& scale,
                         const Tensor& amax) {
  const Tensor y = Tensor::empty(stream, x_TN.shape(), type),
               transposed = transpose_of(stream, x_TN, type);
  quantize_into(stream, x_TN, scale, y, transposed, amax);
  return {{y, scale.inverse}, {transposed, scale.inverse}};
}

Float8Tensor blocks_of(Stream& stream, int64_t R, int64_t K, DType type, ScaleBlocks blocks,
                       device::MemoryCategory category) {
  return {Tensor::empty(stream, {R, K}, type, category),
          Tensor::empty(stream, {block_scales(blocks, R, K)}, block_scale_type(blocks), category),
          blocks};
}

void quantize_blocks_into(Stream& stream, const Tensor& x_TN, const Float8Tensor& y_TN,
                          const Float8Tensor& y_NT) {
  MT_CHECK(x_TN.shape().rank() == 2, "quantize: x is {}", x_TN.shape().str());
  MT_FLOAT("quantize", x_TN);
  MT_CHECK(y_TN.data || y_NT.data, "quantize: neither y_TN nor y_NT is given");
  const auto blocks = y_TN.data ? y_TN.blocks : y_NT.blocks;
  const int64_t T = x_TN.dim(0), N = x_TN.dim(1), stride = round_up(T, block_length(blocks));
  std::vector<device::Access> writes;
  const auto add = [&](const Float8Tensor& y, int64_t R, int64_t K) {
    if (!y.data) return;
    MT_SHAPE("quantize", y.data, {R, K});
    MT_CHECK(y.blocks == blocks, "quantize: y_TN and y_NT have blocks of two kinds");
    MT_SHAPE("quantize", y.inverse, {block_scales(blocks, R, K)});
    writes.push_back(y.data), writes.push_back(y.inverse);
  };
  add(y_TN, T, N), add(y_NT, N, stride);
  enqueue(stream, {.name = "quantize", .reads = {x_TN}, .writes = std::move(writes)},
          kernels::QuantizeBlocks{.x_TN = x_TN,
                                  .blocks = blocks,
                                  .y_TN = y_TN.data,
                                  .inverse_TN = y_TN.inverse,
                                  .y_NT = y_NT.data,
                                  .inverse_NT = y_NT.inverse,
                                  .T = T,
                                  .N = N,
                                  .stride = y_NT.data ? stride : 0});
}

Float8Tensor quantize_blocks(Stream& stream, const Tensor& x_TN, DType type, ScaleBlocks blocks) {
  const Float8Tensor y = blocks_of(stream, x_TN.dim(0), x_TN.dim(1), type, blocks);
  quantize_blocks_into(stream, x_TN, y, {});
  return y;
}

Float8Tensor quantize_blocks_transposed(Stream& stream, const Tensor& x_TN, DType type,
                                        ScaleBlocks blocks) {
  const Float8Tensor y = transposed_blocks(stream, x_TN, type, blocks);
  quantize_blocks_into(stream, x_TN, {}, y);
  return y;
}

Float8Pair quantize_blocks_both(Stream& stream, const Tensor& x_TN, DType type,
                                ScaleBlocks blocks) {
  const Float8Pair both{blocks_of(stream, x_TN.dim(0), x_TN.dim(1), type, blocks),
                        transposed_blocks(stream, x_TN, type, blocks)};
  quantize_blocks_into(stream, x_TN, both.rows, both.transposed);
  return both;
}

void update_scales(Stream& stream, const DelayedScales& scales, int64_t place, bool most_recent,
                   DType type, int margin) {
  const auto& [amax_C, history_CL, scale_C, inverse_C] = scales;
  const int64_t C = amax_C.dim(0), L = history_CL.dim(1);
  MT_SHAPE("update_scales", history_CL, {C, L});
  MT_SHAPE("update_scales", scale_C, {C});
  MT_SHAPE("update_scales", inverse_C, {C});
  enqueue(stream,
          {.name = "update_scales",
           .reads = {amax_C, history_CL, scale_C},
           .writes = {amax_C, history_CL, scale_C, inverse_C}},
          kernels::UpdateScales{.amax_C = amax_C,
                                .history_CL = history_CL,
                                .C = C,
                                .L = L,
                                .place = place,
                                .most_recent = most_recent,
                                .type = type,
                                .margin = margin,
                                .scale_C = scale_C,
                                .inverse_C = inverse_C});
}

void matmul_float8_into(Stream& stream, const char* name, const Float8Tensor& a_MK,
                        const Float8Tensor& b_NK, const Tensor& c_MN, bool accumulate, bool fast,
                        const Tensor& bias_N) {
  const Tensor &a = a_MK.data, &b = b_NK.data;
  if (accumulate) MT_DTYPE("matmul_float8", c_MN, DType::f32);
  MT_CHECK(a.shape().rank() == 2 && b.shape().rank() == 2 && a.dim(1) == b.dim(1),
           "matmul_float8: a {} and b {} do not share K", a.shape().str(), b.shape().str());
  MT_SHAPE("matmul_float8", c_MN, {a.dim(0), b.dim(0)});
  MT_FLOAT("matmul_float8", c_MN);
  kernels::Matmul args{.a = a,
                       .b = b,
                       .bias_N = bias_N,
                       .c_MN = c_MN,
                       .M = a.dim(0),
                       .N = b.dim(0),
                       .K = a.dim(1),
                       .trans_b = true,
                       .accumulate = accumulate,
                       .a_inverse = a_MK.inverse,
                       .b_inverse = b_NK.inverse,
                       .a_blocks = a_MK.blocks,
                       .b_blocks = b_NK.blocks,
                       .fast = fast};
  MT_CHECK(kernels::float8_fits(args),
           "matmul_float8: a {} {} and b {} {}: K and N are multiples of {}, one is e4m3, and "
           "blocks divide K",
           dtype_name(a.dtype()), a.shape().str(), dtype_name(b.dtype()), b.shape().str(),
           kFloat8Multiple);
  std::vector<device::Access> reads{a, b, a_MK.inverse, b_NK.inverse, bias_N};
  if (accumulate) reads.push_back(c_MN);
  enqueue(stream, {.name = name, .reads = std::move(reads), .writes = {c_MN}}, args);
}

}  // namespace mtrain::ops
