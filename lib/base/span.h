// An untyped, unowned view of contiguous elements. It carries its own count: callers do not compute
// counts by hand.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace mtrain {

struct ConstSpan {
  const void* data = nullptr;
  int64_t count = 0;  // elements
  DType dtype = DType::f32;

  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
  int64_t bytes() const { return count * dtype_size(dtype); }
  explicit operator bool() const { return data != nullptr; }
};

struct Span {
  void* data = nullptr;
  int64_t count = 0;  // elements
  DType dtype = DType::f32;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t bytes() const { return count * dtype_size(dtype); }
  explicit operator bool() const { return data != nullptr; }
  operator ConstSpan() const { return {data, count, dtype}; }
};

}  // namespace mtrain
