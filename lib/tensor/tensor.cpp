#include "tensor/tensor.h"

#include "device/device.h"

namespace mtrain::tensor {

Tensor Tensor::empty(Stream& home, Shape shape, DType dtype, device::MemoryCategory category) {
  Tensor t;
  t.buffer_ = home.device().allocator().allocate(shape.count() * dtype_size(dtype), category, home);
  t.shape_ = shape;
  t.dtype_ = dtype;
  return t;
}

Tensor Tensor::over(device::Buffer buffer, Shape shape, DType dtype) {
  MT_CHECK(buffer && shape.count() * dtype_size(dtype) <= buffer->bytes, "{} {} in a buffer",
           shape.str(), dtype_name(dtype));
  Tensor t;
  t.buffer_ = std::move(buffer);
  t.shape_ = shape;
  t.dtype_ = dtype;
  return t;
}

Tensor Tensor::of(const device::Access& range) {
  MT_CHECK(range.storage != nullptr, "a tensor of memory that no buffer owns");
  Tensor t;
  t.buffer_ = range.storage;
  t.offset_ = static_cast<const char*>(range.data) - static_cast<const char*>(range.storage->data);
  t.shape_ = {range.bytes / dtype_size(range.dtype)};
  t.dtype_ = range.dtype;
  return t;
}

std::vector<float> Tensor::to_host_float(Stream& stream) const {
  if (dtype_ == DType::f32) return to_host<float>(stream);
  const auto wide = [](const auto& half) { return std::vector<float>(half.begin(), half.end()); };
  return dtype_ == DType::f16 ? wide(to_host<f16>(stream)) : wide(to_host<bf16>(stream));
}

Tensor Tensor::view(Shape shape) const {
  MT_CHECK(shape.count() == shape_.count(), "{} seen as {}", shape_.str(), shape.str());
  Tensor t = *this;
  t.shape_ = shape;
  return t;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  MT_CHECK(0 <= begin && begin <= end && end <= shape_[0], "rows [{}, {}) of {}", begin, end,
           shape_.str());
  Shape part = shape_;
  part[0] = end - begin;
  return flat(shape_[0] == 0 ? 0 : begin * (shape_.count() / shape_[0]), part);
}

Tensor Tensor::flat(int64_t first, Shape shape) const {
  MT_CHECK(first >= 0 && first + shape.count() <= count(), "{} elements from {} of {}",
           shape.count(), first, buffer_ ? shape_.str() : "an absent tensor");
  Tensor t = *this;
  t.offset_ += first * dtype_size(dtype_);
  t.shape_ = shape;
  return t;
}

}  // namespace mtrain::tensor
