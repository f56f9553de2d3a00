// A tensor: dtype, shape, and a contiguous row-major view of a Buffer. Copying one copies the view,
// not the data.
#pragma once
#include <memory>
#include <vector>

#include "base/shape.h"
#include "base/span.h"
#include "device/allocator.h"
#include "device/stream.h"

namespace mtrain::tensor {

class Tensor {
 public:
  Tensor() = default;  // an absent tensor: no data; stands for "none" in optional arguments
  static Tensor empty(Stream& home, Shape shape, DType dtype,
                      device::MemoryCategory category = device::MemoryCategory::activations);
  // Returns a tensor in a buffer of at least its size.
  static Tensor over(device::Buffer buffer, Shape shape, DType dtype);
  // Returns the memory that a launch has accessed, as a tensor of one dimension.
  static Tensor of(const device::Access& range);
  // Returns a device tensor with the values of `host`; the copy runs in `home`'s order.
  template <class T>
  static Tensor from_host(Stream& home, Shape shape, std::vector<T> host,
                          device::MemoryCategory category = device::MemoryCategory::buffers) {
    MT_CHECK(int64_t(host.size()) == shape.count(), "{} values for {}", host.size(), shape.str());
    Tensor t = empty(home, shape, dtype_of<T>, category);
    auto keep = std::make_shared<std::vector<T>>(std::move(host));
    const void* data = keep->data();
    home.upload(t, std::move(keep), data);
    return t;
  }
  // Returns the values on the host; blocks until everything enqueued on `stream` has run.
  template <class T>
  std::vector<T> to_host(Stream& stream) const {
    MT_CHECK(dtype() == dtype_of<T>, "a tensor of {} is read as {}", dtype_name(dtype()),
             dtype_name(dtype_of<T>));
    std::vector<T> host(static_cast<size_t>(count()));
    stream.download(host.data(), *this);
    return host;
  }
  std::vector<float> to_host_float(Stream& stream) const;  // takes fp32, bf16, fp16

  explicit operator bool() const { return buffer_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t count() const { return buffer_ ? shape_.count() : 0; }
  int64_t bytes() const { return count() * dtype_size(dtype_); }
  DType dtype() const { return dtype_; }
  void* data() const { return buffer_ ? static_cast<char*>(buffer_->data) + offset_ : nullptr; }

  Tensor view(Shape shape) const;                 // the same elements under another shape
  Tensor rows(int64_t begin, int64_t end) const;  // [begin, end) of the first dimension
  Tensor flat(int64_t first, Shape shape) const;  // `shape` elements, starting at element `first`

  operator device::Access() const { return {data(), bytes(), buffer_, dtype_}; }
  operator Span() const { return {data(), count(), dtype_, SpanUse::write, buffer_.get()}; }
  operator ConstSpan() const { return {data(), count(), dtype_, buffer_.get()}; }

 private:
  device::Buffer buffer_;
  int64_t offset_ = 0;  // bytes
  Shape shape_;
  DType dtype_ = DType::f32;
};

}  // namespace mtrain::tensor

// Every folder may call it mtrain::Tensor.
namespace mtrain {
using tensor::Tensor;
}  // namespace mtrain
