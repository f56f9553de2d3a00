#include "ops/elementwise.h"

#include "kernels/elementwise.h"
#include "ops/enqueue.h"

MT_KERNEL(Add)
MT_KERNEL(Cast)
MT_KERNEL(Scale)
MT_KERNEL(SoftCap)
MT_KERNEL(Fill)
MT_KERNEL(FillNormal)
MT_KERNEL(Dropout)

namespace mtrain::ops {

Tensor add(Stream& stream, const Tensor& a, const Tensor& b) {
  MT_CHECK(a.shape() == b.shape(), "add: a is {}, b {}", a.shape().str(), b.shape().str());
  MT_FLOAT("add", a);
  MT_DTYPE("add", b, a.dtype());
  Tensor y = Tensor::empty(stream, a.shape(), a.dtype());
  enqueue(stream, "add", kernels::Add{.a = a, .b = b, .y = y});
  return y;
}

void add_into(Stream& stream, const Tensor& x, const Tensor& sum) {
  MT_CHECK(x.count() == sum.count(), "add_into: x is {}, sum {}", x.shape().str(),
           sum.shape().str());
  MT_FLOAT("add_into", x);
  MT_FLOAT("add_into", sum);
  enqueue(stream, "add_into", kernels::Add{.a = sum, .b = x, .y = sum});
}

void cast(Stream& stream, const Tensor& from, const Tensor& to) {
  MT_FLOAT("cast", from);
  MT_FLOAT("cast", to);
  MT_CHECK(from.count() == to.count(), "cast: {} to {}", from.shape().str(), to.shape().str());
  enqueue(stream, "cast", kernels::Cast{.x = from, .y = to});
}

Tensor in_dtype(Stream& stream, const Tensor& x, DType dtype, device::MemoryCategory category) {
  if (x.dtype() == dtype) return x;
  const Tensor y = Tensor::empty(stream, x.shape(), dtype, category);
  cast(stream, x, y);
  return y;
}

void scale(Stream& stream, const Tensor& x, float factor) {
  MT_FLOAT("scale", x);
  enqueue(stream, "scale", kernels::Scale{.y = x, .factor = factor});
}

void soft_cap(Stream& stream, const Tensor& x, float cap) {
  MT_FLOAT("soft_cap", x);
  enqueue(stream, "soft_cap", kernels::SoftCap{.y = x, .cap = cap});
}

void fill(Stream& stream, const Tensor& x, float value) {
  enqueue(stream, "fill", kernels::Fill{.y = x, .value = value});
}

void fill_normal(Stream& stream, const Tensor& x, uint64_t key, int64_t first_index, float std) {
  MT_DTYPE("fill_normal", x, DType::f32);
  enqueue(stream, "fill_normal",
          kernels::FillNormal{.y = x, .key = key, .first_index = first_index, .std = std});
}

void dropout(Stream& stream, const Tensor& x, uint64_t key, int64_t first_index, float p,
             const Tensor& key_1) {
  MT_FLOAT("dropout", x);
  if (key_1) MT_DTYPE("dropout", key_1, DType::i64);
  enqueue(
      stream, "dropout",
      kernels::Dropout{
          .x = x, .y = x, .key = key, .first_index = first_index, .p = p, .key_in_memory = key_1});
}

}  // namespace mtrain::ops
