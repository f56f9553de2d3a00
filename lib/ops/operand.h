// The values through which GEMMs and the kernels around them agree on the form of a matrix. A
// linear describes its Destination, the kernel that computes the matrix returns what it has Written
// for it, and a GEMM reads an Operand. All three hold plain numbers and quantized ones alike.
#pragma once
#include <utility>

#include "base/quant_format.h"
#include "tensor/tensor.h"

namespace mtrain::ops {

// The scale of a quantized tensor, and the inverse that its GEMMs read.
struct Scale {
  Tensor scale, inverse;  // fp32, one element each
  explicit operator bool() const { return bool(scale); }
};

// A matrix as a GEMM reads it: plain numbers (fp32, bf16 or fp16), or quantized.
struct Operand {
  Tensor data;
  // Quantized elements have one inverse for all of them, or one for each block. Blocks lie
  // along the rows of `data`.
  Tensor inverse;
  ScaleBlocks blocks = ScaleBlocks::none;
  bool transposed = false;  // `data` is the matrix's transpose, with zeros at the end of its rows

  Operand() = default;
  Operand(Tensor plain) : data(std::move(plain)) {}
  Operand(Tensor elements, Tensor inverses, ScaleBlocks shape = ScaleBlocks::none)
      : data(std::move(elements)), inverse(std::move(inverses)), blocks(shape) {}

  QuantFormat format() const { return {data.dtype(), blocks}; }
  bool quantized() const { return format().quantized(); }
  explicit operator bool() const { return bool(data); }
};

// What the kernel that writes a matrix does for the GEMM that reads it. Each part saves a pass over
// the matrix. A kernel does the parts that it can, and its result says which. An empty Destination
// asks for nothing.
struct Destination {
  QuantFormat format = {};  // with a scale: the result is written as quantize() writes it
  Scale scale = {};
  Tensor amax = {};          // fp32, one element: becomes the largest |x| if that is larger
  bool needs_plain = false;  // plain numbers are read, too
  bool quantizes() const { return bool(scale); }
};

// A matrix as its kernel has written it.
struct Written {
  Tensor plain;       // absent if the matrix exists only quantized
  Operand quantized;  // absent unless the destination asked for it, and the kernel can
  Tensor amax;        // the destination's, if the kernel has entered the maximum

  Written() = default;
  Written(Tensor x) : plain(std::move(x)) {}

  explicit operator bool() const { return plain || quantized; }
  // Returns the tensor that has the elements; the quantized one if there are both.
  const Tensor& data() const { return quantized ? quantized.data : plain; }
  Operand operand() const { return quantized ? quantized : Operand(plain); }
  int64_t rows() const { return data().dim(0); }
};

// Allocate a kernel's result for a destination. The first keeps plain numbers beside quantized
// ones, the second has one of the two.
Written result_beside(Stream& stream, const Shape& shape, DType plain, const Destination& to);
Written result_alone(Stream& stream, const Shape& shape, DType plain, const Destination& to);

}  // namespace mtrain::ops
