// Element-wise operations; kernels/elementwise.h has the rules.
#pragma once
#include "ops/operation.h"

namespace mtrain::ops {

Tensor add(Stream& stream, const Tensor& a, const Tensor& b);
void add_into(Stream& stream, const Tensor& x, const Tensor& sum);  // sum += x; dtypes may differ
void cast(Stream& stream, const Tensor& from, const Tensor& to);
// Returns x itself if it already has this dtype, else a cast copy.
Tensor in_dtype(Stream& stream, const Tensor& x, DType dtype,
                device::MemoryCategory category = device::MemoryCategory::activations);
void scale(Stream& stream, const Tensor& x, float factor);  // x *= factor
void soft_cap(Stream& stream, const Tensor& x, float cap);  // x = cap tanh(x / cap)
// Sets all elements of x; if `value` is 0, x may have any dtype.
void fill(Stream& stream, const Tensor& x, float value);
// Writes `std` times normal numbers into x (fp32): element i is number first_index + i of the
// random stream `key` (base/rng.h).
void fill_normal(Stream& stream, const Tensor& x, uint64_t key, int64_t first_index, float std);
// Drops elements of x with probability p, in place; kernels/elementwise.h defines which elements a
// key drops. key_1 (int64, one element, optional) replaces `key` and is read when the launch runs.
void dropout(Stream& stream, const Tensor& x, uint64_t key, int64_t first_index, float p,
             const Tensor& key_1 = {});

}  // namespace mtrain::ops
