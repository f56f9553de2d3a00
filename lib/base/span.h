// An untyped, unowned view of contiguous elements. It carries its own count: callers do not compute
// counts by hand.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace mtrain {

// Keeps the memory of spans. The device's allocations derive from it; kernels do not use it.
struct MemoryOwner {};

// What a launch does with the memory of a Span.
enum class SpanUse : uint8_t {
  write,       // overwrites it, or reads and changes it
  write_part,  // as `write`, but leaves parts unchanged, or writes infinities on purpose
  read,        // only reads it
};

struct ConstSpan {
  const void* data = nullptr;
  int64_t count = 0;  // elements
  DType dtype = DType::f32;
  MemoryOwner* owner = nullptr;  // null: the caller keeps the memory

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
  SpanUse use = SpanUse::write;
  MemoryOwner* owner = nullptr;  // as in ConstSpan

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t bytes() const { return count * dtype_size(dtype); }
  explicit operator bool() const { return data != nullptr; }
  operator ConstSpan() const { return {data, count, dtype, owner}; }
};

}  // namespace mtrain
