// The interface of a data set: an endless stream of samples.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace mtrain::data {

// One sequence of S tokens. label[s] is the token after input[s], or -1 if it has no loss.
struct Sample {
  std::vector<int32_t> input, label, position;  // (S)
  std::vector<int64_t> documents;  // lengths of packed documents, in total S; empty: not packed
  int64_t padding = 0;             // tokens at the end that only fill the sample
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t seq_length() const = 0;
  virtual int64_t size() const = 0;  // samples of an epoch
  // Whether samples are packs. All of them then have documents; otherwise none has.
  virtual bool packed() const { return false; }
  // Whether every sample has seq_length() tokens; otherwise none has more.
  virtual bool fixed_length() const { return true; }
  // Writes sample `index` >= 0 of the stream to `out`. The sample is a pure function of the index.
  // Several threads may call it at the same time.
  virtual void sample(int64_t index, Sample& out) const = 0;
  // Returns a line for the log about this data set; empty: none.
  virtual std::string note() const { return ""; }
};

}  // namespace mtrain::data
