#include "ops/quantize.h"

#include "base/math.h"
#include "kernels/fp8.h"
#include "kernels/fp8_blocks.h"
#include "ops/enqueue.h"

MT_KERNEL(Amax)
MT_KERNEL(ScaleFromAmax)
MT_KERNEL(Quantize)
MT_KERNEL(TransposeFloat8)
MT_KERNEL(QuantizeBlocks)
MT_KERNEL(AmaxOfPart)
MT_KERNEL(InversesOfAmax)
MT_KERNEL(QuantizePart)
MT_KERNEL(TransposeInverses)
MT_KERNEL(UpdateScales)

namespace mtrain::ops {

namespace {

Tensor one(Stream& stream) {
  return Tensor::empty(stream, {1}, DType::f32, device::MemoryCategory::buffers);
}

// Returns the operand with the inverse of its scale, unless its blocks have scales.
Operand under(Operand x, const Scale& scale) {
  if (x.format().outer_scale()) x.inverse = scale.inverse;
  return x;
}

void check_part(const char* op, const PartOfMatrix& part, const Tensor& x, const Tensor& scales) {
  MT_CHECK(is_float(x.dtype()), "{}: x is {}, expected fp32, bf16 or fp16", op,
           dtype_name(x.dtype()));
  MT_CHECK(part.begin >= 0 && part.begin + x.count() <= part.R * part.K,
           "{}: elements [{}, {}) of {} x {}", op, part.begin, part.begin + x.count(), part.R,
           part.K);
  const int64_t blocks = block_scales(ScaleBlocks::square_128, part.R, part.K);
  MT_CHECK(scales.count() == blocks && scales.dtype() == DType::f32,
           "{}: {} scales of type {}, expected {} in fp32", op, scales.count(),
           dtype_name(scales.dtype()), blocks);
}

void quantize_blocks_into(Stream& stream, const Tensor& x_TN, const Operand& y_TN,
                          const Operand& y_NT) {
  const int64_t T = x_TN.dim(0), N = x_TN.dim(1);
  for (const Operand& y : {y_TN, y_NT})
    if (y) MT_SHAPE("quantize", y.inverse, {y.format().scales(y.data.dim(0), y.data.dim(1))});
  enqueue(stream, "quantize",
          kernels::QuantizeBlocks{.x_TN = x_TN,
                                  .blocks = y_TN ? y_TN.blocks : y_NT.blocks,
                                  .y_TN = y_TN.data,
                                  .inverse_TN = y_TN.inverse,
                                  .y_NT = y_NT.data,
                                  .inverse_NT = y_NT.inverse,
                                  .T = T,
                                  .N = N,
                                  .stride = y_NT ? y_NT.data.dim(1) : 0});
}

}  // namespace

Written result_alone(Stream& stream, const Shape& shape, DType plain, const Destination& to) {
  Written w;
  w.amax = to.amax;
  if (to.quantizes())
    w.quantized = {Tensor::empty(stream, shape, to.format.element), to.scale.inverse};
  else
    w.plain = Tensor::empty(stream, shape, plain);
  return w;
}

Written result_beside(Stream& stream, const Shape& shape, DType plain, const Destination& to) {
  Written w = Tensor::empty(stream, shape, plain);
  w.amax = to.amax;
  if (to.quantizes())
    w.quantized = {Tensor::empty(stream, shape, to.format.element), to.scale.inverse};
  return w;
}

Scale current_scale(Stream& stream, const Tensor& x, DType type, int margin) {
  const Scale s{one(stream), one(stream)};
  current_scale_into(stream, x, type, margin, s);
  return s;
}

void current_scale_into(Stream& stream, const Tensor& x, DType type, int margin, const Scale& s) {
  MT_FLOAT("current_scale", x);
  MT_SHAPE("current_scale", s.scale, {1});
  MT_SHAPE("current_scale", s.inverse, {1});
  const Tensor amax = one(stream);
  enqueue(stream, "amax",
          kernels::Amax{.x = x,
                        .amax = amax,
                        .scale = s.scale,
                        .inverse = s.inverse,
                        .type = type,
                        .margin = margin});
}

Scale scale_from_amax(Stream& stream, const Tensor& amax, DType type, int margin) {
  const Scale s{one(stream), one(stream)};
  scale_from_amax_into(stream, amax, type, margin, s);
  return s;
}

void scale_from_amax_into(Stream& stream, const Tensor& amax, DType type, int margin,
                          const Scale& s) {
  MT_SHAPE("scale_from_amax", amax, {1});
  MT_DTYPE("scale_from_amax", amax, DType::f32);
  MT_SHAPE("scale_from_amax", s.scale, {1});
  MT_SHAPE("scale_from_amax", s.inverse, {1});
  enqueue(
      stream, "scale_from_amax",
      kernels::ScaleFromAmax{
          .amax = amax, .scale = s.scale, .inverse = s.inverse, .type = type, .margin = margin});
}

Operand quantized_memory(Stream& stream, int64_t R, int64_t K, QuantFormat format,
                         device::MemoryCategory category) {
  Operand x(Tensor::empty(stream, {R, K}, format.element, category), {}, format.blocks);
  if (!format.outer_scale())
    x.inverse = Tensor::empty(stream, {format.scales(R, K)}, format.scale_type(), category);
  return x;
}

Operand transposed_memory(Stream& stream, int64_t R, int64_t K, QuantFormat format,
                          device::MemoryCategory category) {
  Operand x = quantized_memory(stream, K, round_up(R, format.row_multiple()), format, category);
  x.transposed = true;
  return x;
}

void quantize_into(Stream& stream, const Tensor& x_TN, const Scale& scale, const Operand& rows,
                   const Operand& transposed, const Tensor& amax) {
  MT_CHECK(x_TN.shape().rank() == 2, "quantize: x is {}", x_TN.shape().str());
  MT_FLOAT("quantize", x_TN);
  MT_CHECK(rows || transposed, "quantize: neither form of the result is given");
  const QuantFormat format = (rows ? rows : transposed).format();
  const int64_t T = x_TN.dim(0), N = x_TN.dim(1), stride = round_up(T, format.row_multiple());
  MT_CHECK(format.quantized(), "quantize: the result is {}, expected an 8-bit float",
           dtype_name(format.element));
  if (rows) MT_SHAPE("quantize", rows.data, {T, N});
  if (transposed) MT_SHAPE("quantize", transposed.data, {N, stride});
  MT_CHECK(!rows || !transposed || transposed.format() == format,
           "quantize: the two forms of the result have different formats");
  if (!format.outer_scale()) return quantize_blocks_into(stream, x_TN, rows, transposed);
  if (x_TN.count() == 0) return;  // experts without a row
  enqueue(stream, "quantize",
          kernels::Quantize{.x_TN = x_TN,
                            .scale = scale.scale,
                            .y_TN = rows.data,
                            .y_NT = transposed.data,
                            .amax = amax,
                            .T = T,
                            .N = N,
                            .stride = transposed ? stride : 0});
}

Operand quantize(Stream& stream, const Tensor& x_TN, QuantFormat format, const Scale& scale,
                 const Tensor& amax) {
  const Operand y = quantized_memory(stream, x_TN.dim(0), x_TN.dim(1), format);
  quantize_into(stream, x_TN, scale, y, {}, amax);
  return under(y, scale);
}

Operand quantize_transposed(Stream& stream, const Tensor& x_TN, QuantFormat format,
                            const Scale& scale, const Tensor& amax) {
  const Operand y = transposed_memory(stream, x_TN.dim(0), x_TN.dim(1), format);
  quantize_into(stream, x_TN, scale, {}, y, amax);
  return under(y, scale);
}

QuantizedPair quantize_both(Stream& stream, const Tensor& x_TN, QuantFormat format,
                            const Scale& scale, const Tensor& amax) {
  const QuantizedPair y{quantized_memory(stream, x_TN.dim(0), x_TN.dim(1), format),
                        transposed_memory(stream, x_TN.dim(0), x_TN.dim(1), format)};
  quantize_into(stream, x_TN, scale, y.rows, y.transposed, amax);
  return {under(y.rows, scale), under(y.transposed, scale)};
}

Operand transpose_quantized(Stream& stream, const Operand& x_TN) {
  const Operand y = transposed_memory(stream, x_TN.data.dim(0), x_TN.data.dim(1), x_TN.format());
  transpose_quantized_into(stream, x_TN, y);
  return under(y, {.inverse = x_TN.inverse});
}

void transpose_quantized_into(Stream& stream, const Operand& x_TN, const Operand& y_NT) {
  const Tensor &x = x_TN.data, &y = y_NT.data;
  const QuantFormat format = x_TN.format();
  const bool squares = format.blocks == ScaleBlocks::square_128;
  MT_CHECK(format.quantized() && (format.outer_scale() || squares) && !x_TN.transposed,
           "transpose_quantized: x is {}, expected 8 bits under one scale or square blocks",
           dtype_name(x.dtype()));
  MT_SHAPE("transpose_quantized", y, {x.dim(1), round_up(x.dim(0), format.row_multiple())});
  MT_CHECK(y_NT.format() == format, "transpose_quantized: the result has another format");
  enqueue(stream, "transpose_float8",
          kernels::TransposeFloat8{
              .x_TN = x, .y_NT = y, .T = x.dim(0), .N = x.dim(1), .stride = y.dim(1)});
  if (!squares) return;
  MT_SHAPE("transpose_quantized", y_NT.inverse, {format.scales(y.dim(0), y.dim(1))});
  enqueue(stream, "transpose_inverses",
          kernels::TransposeInverses{.inverse_TN = x_TN.inverse,
                                     .inverse_NT = y_NT.inverse,
                                     .T = x.dim(0),
                                     .N = x.dim(1),
                                     .stride = y.dim(1)});
}

void amax_into(Stream& stream, const Tensor& x, const Tensor& amax) {
  MT_FLOAT("amax", x);
  MT_SHAPE("amax", amax, {1});
  enqueue(stream, "amax", kernels::Amax{.x = x, .amax = amax});
}

void amax_of_part(Stream& stream, const PartOfMatrix& part, const Tensor& x, const Tensor& amax) {
  check_part("amax_of_part", part, x, amax);
  enqueue(stream, "amax_of_part",
          kernels::AmaxOfPart{
              .x = x, .amax = partly_written(amax), .begin = part.begin, .R = part.R, .K = part.K});
}

void inverses_of_amax(Stream& stream, const Tensor& amax, DType type) {
  MT_DTYPE("inverses_of_amax", amax, DType::f32);
  enqueue(stream, "inverses_of_amax", kernels::InversesOfAmax{.inverse = amax, .type = type});
}

void quantize_part(Stream& stream, const PartOfMatrix& part, const Tensor& x, const Tensor& inverse,
                   const Tensor& y) {
  check_part("quantize_part", part, x, inverse);
  MT_CHECK(x.count() == y.count() && is_float8(y.dtype()), "quantize_part: {} elements to {} {}",
           x.count(), y.count(), dtype_name(y.dtype()));
  enqueue(stream, "quantize_part",
          kernels::QuantizePart{
              .x = x, .inverse = inverse, .y = y, .begin = part.begin, .R = part.R, .K = part.K});
}

void update_scales(Stream& stream, const DelayedScales& scales, int64_t place, bool most_recent,
                   DType type, int margin, const Tensor& grad_scale) {
  const auto& [amax_C, history_CL, scale_C, inverse_C] = scales;
  const int64_t C = amax_C.dim(0), L = history_CL.dim(1);
  MT_SHAPE("update_scales", history_CL, {C, L});
  MT_SHAPE("update_scales", scale_C, {C});
  MT_SHAPE("update_scales", inverse_C, {C});
  enqueue(stream, "update_scales",
          kernels::UpdateScales{.grad_scale = grad_scale,
                                .amax_C = amax_C,
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

}  // namespace mtrain::ops
