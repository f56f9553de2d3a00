// A tensor's dimensions: at most four, stored inline.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/error.h"

namespace mtrain {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    MT_CHECK(dims.size() <= dims_.size(), "{} dimensions", dims.size());
    for (int64_t d : dims) dims_[rank_++] = d;
  }
  int rank() const { return rank_; }
  // Returns the size of dimension `dim`; negative numbers count from the end: -1 is the last
  // dimension.
  int64_t operator[](int dim) const { return dims_[index(dim)]; }
  int64_t& operator[](int dim) { return dims_[index(dim)]; }
  int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  bool operator==(const Shape& o) const {
    if (rank_ != o.rank_) return false;
    for (int i = 0; i < rank_; ++i)
      if (dims_[i] != o.dims_[i]) return false;
    return true;
  }
  std::string str() const {
    std::string s = "(";
    for (int i = 0; i < rank_; ++i) s += (i ? ", " : "") + std::to_string(dims_[i]);
    return s + ")";
  }

 private:
  size_t index(int dim) const {
    const int i = dim < 0 ? rank_ + dim : dim;
    MT_CHECK(0 <= i && i < rank_, "dimension {} of {}", dim, str());
    return size_t(i);
  }
  std::array<int64_t, 4> dims_{};
  int rank_ = 0;
};

}  // namespace mtrain
