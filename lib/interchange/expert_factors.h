// The form in which peft keeps the adapters of all experts of a layer, one tensor for each factor
// (its target_parameters): A is (experts dim, columns), one expert after the other, and B is (rows,
// dim experts), with the k-th column of expert e at k experts + e. AutoModel writes A and B in each
// other's place, each transposed, as versions of peft before 0.19 did.
#pragma once
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "storage/value_source.h"

namespace mtrain::interchange {

// Element (e, i, j) of a tensor of three dimensions is element e s[0] + i s[1] + j s[2] of another.
using Strides = std::array<int64_t, 3>;

// Return the strides of A (experts, dim, columns) and of B (experts, rows, dim) in peft's tensors.
Strides strides_of_a(int64_t experts, int64_t dim, int64_t columns, bool swapped = false);
Strides strides_of_b(int64_t experts, int64_t rows, int64_t dim, bool swapped = false);

// Presents tensors of `source` as those of experts, and its other tensors as they are. Several
// threads may read at the same time.
class ExpertFactors : public storage::ValueSource {
 public:
  explicit ExpertFactors(std::shared_ptr<const ValueSource> source) : source_(std::move(source)) {}

  // Presents the tensor as `shape`, which has as many elements.
  void add(const std::string& name, const Shape& shape, const Strides& strides) {
    parts_[name] = {shape, strides};
  }

  bool contains(std::string_view name) const override { return source_->contains(name); }
  Shape shape(std::string_view name) const override;
  std::string origin(std::string_view name) const override { return source_->origin(name); }
  bool finite() const override { return source_->finite(); }
  void read(std::string_view name, int64_t first, int64_t count, float* values) const override;

 private:
  struct Part {
    Shape shape;
    Strides strides;
  };
  struct Cached {
    std::string name;
    std::shared_ptr<const std::vector<float>> values;
  };
  std::shared_ptr<const std::vector<float>> stored(const std::string& name) const;

  const std::shared_ptr<const ValueSource> source_;
  std::map<std::string, Part, std::less<>> parts_;
  mutable std::mutex mutex_;
  mutable std::deque<Cached> cached_;  // the tensors that were read last: a layer's A and B
};

}  // namespace mtrain::interchange
