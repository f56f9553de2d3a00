// The ids of a golden model as training data.
#pragma once
#include <cstdint>
#include <vector>

#include "data/dataset/dataset.h"
#include "storage/safetensors.h"

namespace train_testing {

// Each sample but its last token, and the tokens after each.
class GoldenIds : public mtrain::data::Dataset {
 public:
  explicit GoldenIds(const mtrain::storage::SafetensorsReader& file) {
    const mtrain::Shape shape = file.shape("input_ids");
    samples_ = shape[0], length_ = shape[1];
    ids_.resize(size_t(shape.count()));
    file.read_bytes("input_ids", 0, shape.count() * int64_t(sizeof(int32_t)), ids_.data());
  }
  int64_t seq_length() const override { return length_ - 1; }
  int64_t size() const override { return samples_; }
  void sample(int64_t index, mtrain::data::Sample& out) const override {
    const auto first = ids_.begin() + index % samples_ * length_;
    out.input.assign(first, first + length_ - 1);
    out.label.assign(first + 1, first + length_);
    out.position.clear();
    for (int64_t s = 0; s + 1 < length_; ++s) out.position.push_back(int32_t(s));
  }

 private:
  int64_t samples_, length_;
  std::vector<int32_t> ids_;
};

}  // namespace train_testing
