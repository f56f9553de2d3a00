// A curve of any length as a bounded number of its points.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "observe/metrics_reader.h"

namespace mtrain::observe {

// Keeps the smallest and the largest value of each range of steps, and a gap of the range: a value
// that is not finite. A picture of these points looks like one of all points. Ranges become twice
// as long whenever there are too many.
class Envelope {
 public:
  explicit Envelope(size_t most_ranges) : most_(most_ranges) {}

  // The step must be above all earlier ones that were not cut.
  void add(int64_t step, double value);
  // Forgets the points from this step on. What they have replaced within their range stays lost.
  void cut_from(int64_t step);
  void shrink_to(size_t most_ranges);  // at least one

  // How many values the curve has, and how many of them are not finite. If a cut was within a range
  // of several steps, what is left of this range is counted as if each step had a value.
  int64_t count() const;
  int64_t not_finite() const;
  bool empty() const { return ranges_.empty(); }
  // Returns points of the curve in the order of steps, the first and the last one included.
  Series points() const;

 private:
  struct Point {
    int64_t step = 0;
    double value = 0;
  };
  struct Range {
    int64_t number = 0;  // its steps are from number * width_ on
    std::optional<Point> least, most, gap;
    int64_t count = 0, not_finite = 0;  // of values
    void add(const Point& point);
    void merge(const Range& later);
  };
  void halve();

  size_t most_;
  int64_t width_ = 1;  // of a range, in steps
  std::vector<Range> ranges_;
  std::optional<Point> first_, last_;
};

}  // namespace mtrain::observe
