#include "observe/envelope.h"

#include <algorithm>
#include <cmath>

namespace mtrain::observe {

void Envelope::Range::add(const Point& point) {
  if (!std::isfinite(point.value)) {
    if (!gap) gap = point;
    return;
  }
  if (!least || point.value < least->value) least = point;
  if (!most || point.value > most->value) most = point;
}

void Envelope::Range::merge(const Range& later) {
  for (const auto& point : {later.least, later.most, later.gap})
    if (point) add(*point);
  count += later.count;
  not_finite += later.not_finite;
}

int64_t Envelope::count() const {
  int64_t sum = 0;
  for (const Range& range : ranges_) sum += range.count;
  return sum;
}

int64_t Envelope::not_finite() const {
  int64_t sum = 0;
  for (const Range& range : ranges_) sum += range.not_finite;
  return sum;
}

void Envelope::add(int64_t step, double value) {
  const Point point{step, value};
  if (!first_) first_ = point;
  last_ = point;
  const int64_t number = step / width_;
  if (ranges_.empty() || ranges_.back().number != number) ranges_.push_back({.number = number});
  ranges_.back().add(point);
  ++ranges_.back().count;
  ranges_.back().not_finite += !std::isfinite(value);
  if (ranges_.size() > most_) halve();
}

void Envelope::halve() {
  width_ *= 2;
  std::vector<Range> merged;
  for (Range& range : ranges_) {
    range.number /= 2;
    if (!merged.empty() && merged.back().number == range.number)
      merged.back().merge(range);
    else
      merged.push_back(range);
  }
  ranges_ = std::move(merged);
}

void Envelope::shrink_to(size_t most_ranges) {
  most_ = std::max<size_t>(1, most_ranges);
  while (ranges_.size() > most_) halve();
}

void Envelope::cut_from(int64_t step) {
  if (!last_ || last_->step < step) return;
  while (!ranges_.empty() && ranges_.back().number * width_ >= step) ranges_.pop_back();
  if (!ranges_.empty()) {
    Range& range = ranges_.back();
    for (auto* point : {&range.least, &range.most, &range.gap})
      if (*point && (*point)->step >= step) point->reset();
    // One point is the least and the largest.
    if (!range.least) range.least = range.most;
    if (!range.most) range.most = range.least;
    range.count = std::min(range.count, step - range.number * width_);
    range.not_finite = range.gap ? std::min(range.not_finite, step - range.gap->step) : 0;
    if (!range.least && !range.gap) ranges_.pop_back();
  }
  if (first_->step >= step) first_.reset();
  last_.reset();
  const Series rest = points();
  if (!rest.empty()) last_ = Point{rest.steps.back(), rest.values.back()};
}

Series Envelope::points() const {
  std::vector<Point> all;
  if (first_) all.push_back(*first_);
  for (const Range& range : ranges_)
    for (const auto& point : {range.least, range.most, range.gap})
      if (point) all.push_back(*point);
  if (last_) all.push_back(*last_);
  std::ranges::stable_sort(all, {}, &Point::step);
  Series series;
  for (const Point& point : all) {
    if (!series.empty() && series.steps.back() == point.step) continue;
    series.steps.push_back(point.step);
    series.values.push_back(point.value);
  }
  return series;
}

}  // namespace mtrain::observe
