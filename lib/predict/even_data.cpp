#include "predict/even_data.h"

#include <numeric>

namespace mtrain::predict {

namespace {

class EvenData : public data::Dataset {
 public:
  EvenData(int64_t length, bool packed) : length_(length), packed_(packed) {}
  int64_t seq_length() const override { return length_; }
  int64_t size() const override { return int64_t{1} << 40; }
  bool packed() const override { return packed_; }
  void sample(int64_t, data::Sample& out) const override {
    out = {};
    out.input.assign(size_t(length_), 0);
    out.label = out.input;
    out.position.resize(size_t(length_));
    std::iota(out.position.begin(), out.position.end(), 0);
    if (packed_) out.documents = {length_};
  }

 private:
  const int64_t length_;
  const bool packed_;
};

}  // namespace

std::shared_ptr<const data::Dataset> even_data(const RunPlan& plan) {
  return std::make_shared<EvenData>(plan.sample_length, plan.dataset.by_document());
}

}  // namespace mtrain::predict
