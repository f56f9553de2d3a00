#include "interchange/expert_factors.h"

#include <algorithm>
#include <utility>

namespace mtrain::interchange {

namespace {
constexpr size_t kCached = 2;
}  // namespace

Strides strides_of_a(int64_t experts, int64_t dim, int64_t columns, bool swapped) {
  if (swapped) return {1, experts, dim * experts};
  return {dim * columns, columns, 1};
}

Strides strides_of_b(int64_t experts, int64_t rows, int64_t dim, bool swapped) {
  if (swapped) return {dim * rows, 1, rows};
  return {1, dim * experts, experts};
}

Shape ExpertFactors::shape(std::string_view name) const {
  const auto part = parts_.find(name);
  return part == parts_.end() ? source_->shape(name) : part->second.shape;
}

std::shared_ptr<const std::vector<float>> ExpertFactors::stored(const std::string& name) const {
  {
    const std::lock_guard lock(mutex_);
    const auto at = std::ranges::find(cached_, name, &Cached::name);
    if (at != cached_.end()) return at->values;
  }
  auto values = std::make_shared<std::vector<float>>(size_t(source_->shape(name).count()));
  source_->read(name, 0, int64_t(values->size()), values->data());
  const std::lock_guard lock(mutex_);
  cached_.push_front({name, values});
  if (cached_.size() > kCached) cached_.pop_back();
  return values;
}

void ExpertFactors::read(std::string_view name, int64_t first, int64_t count, float* values) const {
  const auto found = parts_.find(name);
  if (found == parts_.end()) return source_->read(name, first, count, values);
  const auto& [shape, strides] = found->second;
  const auto all = stored(found->first);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i, row = at / shape[2];
    values[i] = (*all)[size_t(row / shape[1] * strides[0] + row % shape[1] * strides[1] +
                              at % shape[2] * strides[2])];
  }
}

}  // namespace mtrain::interchange
