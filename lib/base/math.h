// Small integer helpers that check their assumptions.
#pragma once
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace mtrain {

inline int64_t exact_div(int64_t a, int64_t b) {
  MT_CHECK(b != 0 && a % b == 0, "{} is not a multiple of {}", a, b);
  return a / b;
}
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
// Returns where part i begins if n items are split evenly into `parts` parts.
constexpr int64_t part_begin(int64_t n, int64_t parts, int64_t i) {
  const int64_t left = n % parts;
  return i * (n / parts) + (i < left ? i : left);
}

template <class To, class From>
To narrow(From value) {
  MT_CHECK(std::in_range<To>(value), "{} does not fit", value);
  return static_cast<To>(value);
}

}  // namespace mtrain
