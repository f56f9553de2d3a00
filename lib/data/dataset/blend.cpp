#include "data/dataset/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace mtrain::data {
namespace {
using Wide = unsigned __int128;
constexpr uint64_t kShareSum = uint64_t(1) << 62;    // the sum of all shares
constexpr int64_t kLargestBlock = int64_t(1) << 22;  // samples
}  // namespace

Blend::Blend(const std::vector<double>& weights) {
  if (weights.empty()) throw UserError("the blend has no data sets");
  double sum = 0;
  for (size_t j = 0; j < weights.size(); ++j) {
    if (!(weights[j] > 0) || !std::isfinite(weights[j]))
      throw UserError(
          fmt::format("the weight of data set {} of the blend is {}", j, weights[j]),
          "weights are positive numbers; leave a data set out instead of weighing it 0");
    sum += weights[j];
  }
  uint64_t left = kShareSum;
  for (double weight : weights) {
    shares_.push_back(std::min(left, uint64_t(weight / sum * double(kShareSum))));
    left -= shares_.back();
  }
  *std::max_element(shares_.begin(), shares_.end()) += left;  // the remainder of the divisions
  // Every data set must come at least once in a block: its count at the end of a block is then
  // never below its count at the end of the block before.
  const uint64_t smallest = *std::min_element(shares_.begin(), shares_.end());
  while (block_ < kLargestBlock && Wide(smallest) * Wide(block_) < kShareSum) block_ *= 2;
  if (Wide(smallest) * Wide(block_) < kShareSum)
    throw UserError(
        fmt::format("a weight of the blend is {:.3g} of the sum: less than one sample in {}",
                    double(smallest) / double(kShareSum), kLargestBlock),
        "leave that data set out or weigh it more");
}

double Blend::weight(int64_t dataset) const {
  return double(shares_.at(size_t(dataset))) / double(kShareSum);
}

// Returns each data set's weight * samples, rounded down, or up for those with the largest
// remainders. The counts add up to `samples`.
std::vector<int64_t> Blend::counts_after(int64_t samples) const {
  const size_t k = shares_.size();
  std::vector<int64_t> counts(k);
  std::vector<uint64_t> remainders(k);
  int64_t missing = samples;
  for (size_t j = 0; j < k; ++j) {
    const Wide exact = Wide(shares_[j]) * Wide(samples);
    counts[j] = int64_t(exact / kShareSum);
    remainders[j] = uint64_t(exact % kShareSum);
    missing -= counts[j];
  }
  std::vector<size_t> order(k);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  for (int64_t m = 0; m < missing; ++m) ++counts[order[size_t(m)]];
  return counts;
}

// Sample m (from 1) of a data set with weight q may come at step floor((m - 1) / q) + 1 or later,
// and is due at step ceil(m / q). Only between these steps is the data set's count q * steps,
// rounded up or down. If each step takes the sample that is due first, no sample comes after its
// due step.
void Blend::fill_block(int64_t number) const {
  const size_t k = shares_.size();
  const int64_t first = number * block_, last = first + block_;
  starts_ = counts_after(first);
  const std::vector<int64_t> ends = counts_after(last);
  struct Next {
    int64_t count, release, due;
  };
  std::vector<Next> next(k);
  const auto plan = [&](size_t j) {
    const int64_t done = next[j].count;
    const bool any = done < ends[j];
    next[j].release = any ? int64_t(Wide(done) * kShareSum / shares_[j]) + 1 : last + 1;
    next[j].due =
        std::min(last, int64_t((Wide(done + 1) * kShareSum + shares_[j] - 1) / shares_[j]));
  };
  for (size_t j = 0; j < k; ++j) {
    next[j].count = starts_[j];
    plan(j);
  }
  entries_.resize(size_t(block_));
  for (int64_t step = first + 1; step <= last; ++step) {
    size_t best = k;
    for (size_t j = 0; j < k; ++j)
      if (next[j].release <= step && (best == k || next[j].due < next[best].due)) best = j;
    MT_CHECK(best < k && next[best].due >= step, "no data set for sample {}", step - 1);
    entries_[size_t(step - first - 1)] = {int32_t(best), int32_t(next[best].count - starts_[best])};
    ++next[best].count;
    plan(best);
  }
  cached_ = number;
}

Blend::Pick Blend::at(int64_t i) const {
  MT_CHECK(i >= 0, "sample {}", i);
  std::lock_guard lock(mutex_);
  if (i / block_ != cached_) fill_block(i / block_);
  const Entry entry = entries_[size_t(i % block_)];
  return {entry.dataset, starts_[size_t(entry.dataset)] + entry.rank};
}

BlendDataset::BlendDataset(std::vector<std::shared_ptr<const Dataset>> datasets,
                           const std::vector<double>& weights)
    : datasets_(std::move(datasets)), blend_(weights) {
  if (datasets_.size() != weights.size())
    throw UserError(
        fmt::format("the blend has {} data sets and {} weights", datasets_.size(), weights.size()));
  for (const auto& dataset : datasets_)
    MT_CHECK(dataset->seq_length() == seq_length(), "samples of {} and {} tokens in one blend",
             dataset->seq_length(), seq_length());
}

int64_t BlendDataset::size() const {
  double samples = INFINITY;
  for (size_t j = 0; j < datasets_.size(); ++j)
    samples = std::min(samples, double(datasets_[j]->size()) / blend_.weight(int64_t(j)));
  return int64_t(samples);
}

std::string BlendDataset::note() const {
  std::string text;
  for (const auto& dataset : datasets_) {
    const std::string note = dataset->note();
    if (!note.empty()) text += (text.empty() ? "" : "\n") + note;
  }
  return text;
}

void BlendDataset::sample(int64_t index, Sample& out) const {
  const Blend::Pick pick = blend_.at(index);
  datasets_[size_t(pick.dataset)]->sample(pick.index, out);
}

}  // namespace mtrain::data
