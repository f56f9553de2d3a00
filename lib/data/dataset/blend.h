// Several data sets as one, in fixed proportions.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "data/dataset/dataset.h"

namespace mtrain::data {

// Which data set gives sample i, and which of its samples that is. After any number n of samples
// each data set has given weight * n of them, rounded up or down, and its samples come in order. A
// pure function of (weights, i) with bounded memory: the counts at the ends of blocks are
// apportioned by largest remainder, and inside a block the data set whose next sample is due first
// is taken (Tijdeman, "The chairman assignment problem", 1980).
class Blend {
 public:
  struct Pick {
    int64_t dataset, index;
  };
  explicit Blend(const std::vector<double>& weights);  // > 0, any scale; UserError otherwise

  Pick at(int64_t i) const;                 // safe to call from several threads
  double weight(int64_t dataset) const;     // of a sum of 1
  int64_t block() const { return block_; }  // samples

 private:
  std::vector<int64_t> counts_after(int64_t samples) const;
  void fill_block(int64_t number) const;

  std::vector<uint64_t> shares_;  // weights as integers, of a sum of 2^62
  int64_t block_ = 1024;
  mutable std::mutex mutex_;  // guards the block made last
  mutable int64_t cached_ = -1;
  struct Entry {
    int32_t dataset, rank;  // the rank-th sample of this data set in this block
  };
  mutable std::vector<Entry> entries_;
  mutable std::vector<int64_t> starts_;
};

class BlendDataset final : public Dataset {
 public:
  BlendDataset(std::vector<std::shared_ptr<const Dataset>> datasets,
               const std::vector<double>& weights);

  int64_t seq_length() const override { return datasets_.front()->seq_length(); }
  int64_t size() const override;
  void sample(int64_t index, Sample& out) const override;
  std::string note() const override;

 private:
  std::vector<std::shared_ptr<const Dataset>> datasets_;
  Blend blend_;
};

}  // namespace mtrain::data
