// Made-up data that a model learns within a few steps. Every layout must train on them alike.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/rng.h"
#include "data/dataset/dataset.h"

namespace mtrain::data {

// A noisy counting language, with some masked labels.
class CountingData : public Dataset {
 public:
  explicit CountingData(int64_t vocab = 61, int64_t seq = 24) : vocab_(vocab), seq_(seq) {}
  int64_t seq_length() const override { return seq_; }
  int64_t size() const override { return 1 << 20; }
  void sample(int64_t index, Sample& out) const override {
    out.input.clear(), out.label.clear(), out.position.clear();
    auto token = int32_t(uniform_below(7, uint64_t(index), uint64_t(vocab_)));
    for (int64_t s = 0; s < seq_; ++s) {
      const bool jump = uniform_below(8, uint64_t(index * seq_ + s), 10) == 0;
      const auto next =
          jump ? int32_t(uniform_below(9, uint64_t(index * seq_ + s), uint64_t(vocab_)))
               : (token * 5 + 3) % int32_t(vocab_);
      out.input.push_back(token);
      out.label.push_back((index + s) % 11 == 0 ? -1 : next);
      out.position.push_back(int32_t(s));
      token = next;
    }
  }

 private:
  int64_t vocab_, seq_;
};

// Every sample has documents of 1 to 10 tokens, and a masked rest: no length is a multiple of a
// chunk.
class PackedCountingData : public CountingData {
 public:
  using CountingData::CountingData;
  bool packed() const override { return true; }
  void sample(int64_t index, Sample& out) const override {
    CountingData::sample(index, out);
    out.documents.clear();
    for (int64_t at = 0, d = 0; at < seq_length(); ++d) {
      const auto drawn = int64_t(1 + uniform_below(11, uint64_t(index * seq_length() + d), 10));
      const int64_t length = std::min(drawn, seq_length() - at);
      for (int64_t s = 0; s < length; ++s) out.position[size_t(at + s)] = int32_t(s);
      out.documents.push_back(length);
      at += length;
      if (at == seq_length()) std::fill(out.label.end() - length, out.label.end(), -1);
    }
  }
};

}  // namespace mtrain::data
