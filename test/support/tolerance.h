// The one rule by which a result counts as close to its float64 reference:
//
//     |got - ref| <= eps(dtype) * (|ref| + sqrt(K) * scale)
//
// eps is the distance of 1 from the next number of the type, K the number of terms in the longest
// sum that makes an element, and scale the size of one term. The rounding errors of a sum are a
// random walk and grow as sqrt(K). A NaN is never close.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/span.h"

namespace mtrain::test {

inline double eps(DType dtype) {
  switch (dtype) {
    case DType::bf16: return 0x1p-7;
    case DType::f16: return 0x1p-10;
    case DType::f32: return 0x1p-23;
    default: return 0x1p-52;
  }
}

inline double element(const ConstSpan& s, int64_t i) {
  switch (s.dtype) {
    case DType::bf16: return double(float(s.as<bf16>()[i]));
    case DType::f16: return double(float(s.as<f16>()[i]));
    case DType::f32: return double(s.as<float>()[i]);
    case DType::f8e4m3: return double(float(s.as<f8e4m3>()[i]));
    case DType::f8e5m2: return double(float(s.as<f8e5m2>()[i]));
    case DType::f64: return s.as<double>()[i];
    case DType::i32: return double(s.as<int32_t>()[i]);
    case DType::i64: return double(s.as<int64_t>()[i]);
    case DType::u8: return double(s.as<uint8_t>()[i]);
  }
  return NAN;
}

struct Rule {
  DType dtype = DType::f32;  // type of the result
  double K = 1, scale = 1;
  DType sums = dtype;  // type of the sums that make an element: fp32 if only the result is bf16
  double allowed(double ref) const {
    return eps(dtype) * std::abs(ref) + eps(sums) * std::sqrt(K) * scale;
  }
};

// Makes the comparisons of one test. At its end it prints how much of the tolerance the worst
// element has used.
class Closeness {
 public:
  explicit Closeness(std::string what) : what_(std::move(what)) {}
  ~Closeness() {
    std::printf("  %-44s used %5.1f %% of the tolerance\n", what_.c_str(), 100 * used_);
  }
  Closeness(const Closeness&) = delete;
  Closeness& operator=(const Closeness&) = delete;

  // Returns an empty text if all elements are close, else the first that is not, as in
  // REQUIRE(close(got, ref, rule) == "").
  std::string operator()(const ConstSpan& got, const std::vector<double>& ref, const Rule& rule) {
    if (got.count != int64_t(ref.size()))
      return std::to_string(got.count) + " elements, expected " + std::to_string(ref.size());
    for (int64_t i = 0; i < got.count; ++i) {
      const double value = element(got, i), error = std::abs(value - ref[i]),
                   allowed = rule.allowed(ref[i]);
      if (!(error <= allowed)) {
        char text[200];
        std::snprintf(text, sizeof text,
                      "element %lld: got %.9g, expected %.9g, error %.3g, allowed %.3g",
                      static_cast<long long>(i), value, ref[i], error, allowed);
        return text;
      }
      if (error > 0) used_ = std::max(used_, error / allowed);
    }
    return "";
  }

 private:
  std::string what_;
  double used_ = 0;
};

// Returns d loss / d x[i] for every i by central differences of the scalar function. With h = 1e-4
// and values around 1 the error is about 1e-9, a hundredth of fp32's eps.
template <class Loss>
std::vector<double> finite_difference(std::vector<double> x, const Loss& loss, double h = 1e-4) {
  std::vector<double> slope(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + h;
    const double above = loss(x);
    x[i] = at - h;
    const double below = loss(x);
    x[i] = at;
    slope[i] = (above - below) / (2 * h);
  }
  return slope;
}

}  // namespace mtrain::test
