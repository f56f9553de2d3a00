// Helpers for tests of kernels: typed arrays that are filled from float64 values, and a loop over
// instruction sets.
#pragma once
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/rng.h"
#include "base/span.h"
#include "base/thread_pool.h"
#include "kernels/cpu/dispatch.h"
#include "test/support/tolerance.h"

namespace mtrain::test {

// An array whose type is chosen at run time, with a margin on both sides that must stay untouched.
class Array {
 public:
  Array(DType dtype, int64_t count)
      : dtype_(dtype),
        count_(count),
        bytes_(size_t((count + 2 * kMargin) * dtype_size(dtype)), 0x5a) {
    std::memset(data(), 0, size_t(count * dtype_size(dtype)));
  }
  Array(DType dtype, const std::vector<double>& values) : Array(dtype, int64_t(values.size())) {
    for (int64_t i = 0; i < count_; ++i) set(i, values[i]);
  }
  static Array one(DType dtype, double value) { return Array(dtype, std::vector<double>{value}); }
  // Returns normally distributed numbers, which are a function of the key.
  static Array normal(DType dtype, int64_t count, uint64_t key, float std = 1) {
    std::vector<float> x(count);
    fill_normal(key, 0, count, std, x.data());
    return Array(dtype, std::vector<double>(x.begin(), x.end()));
  }
  static Array ids(const std::vector<int32_t>& values) {
    Array a(DType::i32, int64_t(values.size()));
    if (!values.empty()) std::memcpy(a.data(), values.data(), values.size() * sizeof(int32_t));
    return a;
  }

  Span span() { return {data(), count_, dtype_}; }
  ConstSpan span() const { return {const_cast<Array*>(this)->data(), count_, dtype_}; }
  operator Span() { return span(); }
  operator ConstSpan() const { return span(); }
  int64_t size() const { return count_; }
  DType dtype() const { return dtype_; }
  double operator[](int64_t i) const { return element(span(), i); }
  void set(int64_t i, double v) {
    switch (dtype_) {
      case DType::bf16: static_cast<bf16*>(data())[i] = bf16(float(v)); break;
      case DType::f16: static_cast<f16*>(data())[i] = f16(float(v)); break;
      case DType::f32: static_cast<float*>(data())[i] = float(v); break;
      case DType::f8e4m3: static_cast<f8e4m3*>(data())[i] = f8e4m3(float(v)); break;
      case DType::f8e5m2: static_cast<f8e5m2*>(data())[i] = f8e5m2(float(v)); break;
      case DType::f64: static_cast<double*>(data())[i] = v; break;
      case DType::i32: static_cast<int32_t*>(data())[i] = int32_t(v); break;
      case DType::i64: static_cast<int64_t*>(data())[i] = int64_t(v); break;
      case DType::u8: static_cast<uint8_t*>(data())[i] = uint8_t(v); break;
    }
  }
  std::vector<double> values(int64_t begin = 0, int64_t count = -1) const {
    std::vector<double> v(count < 0 ? count_ - begin : count);
    for (size_t i = 0; i < v.size(); ++i) v[i] = (*this)[begin + int64_t(i)];
    return v;
  }
  bool margin_untouched() const {
    const size_t margin = size_t(kMargin * dtype_size(dtype_));
    for (size_t i = 0; i < margin; ++i)
      if (bytes_[i] != 0x5a || bytes_[bytes_.size() - 1 - i] != 0x5a) return false;
    return true;
  }
  // Compares bit by bit.
  bool operator==(const Array& o) const { return dtype_ == o.dtype_ && bytes_ == o.bytes_; }

 private:
  static constexpr int64_t kMargin = 64;
  void* data() { return bytes_.data() + kMargin * dtype_size(dtype_); }
  DType dtype_;
  int64_t count_;
  std::vector<unsigned char> bytes_;
};

// Calls fn(name) under every instruction set that this CPU has.
inline void for_each_isa(const std::function<void(const char*)>& fn) {
  using namespace kernels::cpu;
  struct Restore {
    Isa isa;
    ~Restore() { set_isa(isa); }
  } restore{isa()};
  for (Isa isa : {Isa::generic, Isa::avx2, Isa::avx512}) {
    if (!isa_supported(isa)) continue;
    set_isa(isa);
    fn(isa_name(isa));
  }
}

inline const std::vector<DType> kFloats = {DType::f32, DType::bf16, DType::f16};

// Returns whether one operation can have both types: not both 16-bit floats.
template <class... Types>
bool can_meet(Types... types) {
  return !(((types == DType::bf16) || ...) && ((types == DType::f16) || ...));
}

}  // namespace mtrain::test
