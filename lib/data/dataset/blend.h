// Mixes several data sets into one, in fixed proportions.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "data/dataset/dataset.h"

namespace mtrain::data {

// Maps sample i of the blend to a data set and one of its samples. After any number n of samples,
// each data set has given weight * n of them, rounded up or down, in their order. The result is a
// pure function of (weights, i) and takes bounded memory. Samples come in blocks, whose counts per
// data set are apportioned by largest remainder. Inside a block, the data set whose next sample is
// due first comes next (Tijdeman, "The chairman assignment problem", 1980).
class Blend {
 public:
  struct Pick {
    int64_t dataset, index;
  };
  // The weights are positive numbers of any scale; throws UserError otherwise.
  explicit Blend(const std::vector<double>& weights);

  Pick at(int64_t i) const;                 // several threads may call it
  double weight(int64_t dataset) const;     // scaled; the weights add up to 1
  int64_t block() const { return block_; }  // samples of a block

 private:
  std::vector<int64_t> counts_after(int64_t samples) const;
  void fill_block(int64_t number) const;

  std::vector<uint64_t> shares_;  // the weights as integers that add up to 2^62
  int64_t block_ = 1024;
  mutable std::mutex mutex_;     // guards the latest block
  mutable int64_t cached_ = -1;  // the number of that block
  struct Entry {
    int32_t dataset, rank;  // the rank-th sample of this data set in this block
  };
  mutable std::vector<Entry> entries_;
  mutable std::vector<int64_t> starts_;  // samples that each data set has given before that block
};

class BlendDataset final : public Dataset {
 public:
  BlendDataset(std::vector<std::shared_ptr<const Dataset>> datasets,
               const std::vector<double>& weights);

  int64_t seq_length() const override { return datasets_.front()->seq_length(); }
  int64_t size() const override;
  bool packed() const override { return datasets_.front()->packed(); }
  bool fixed_length() const override { return datasets_.front()->fixed_length(); }
  void sample(int64_t index, Sample& out) const override;
  std::string note() const override;

 private:
  std::vector<std::shared_ptr<const Dataset>> datasets_;
  Blend blend_;
};

}  // namespace mtrain::data
