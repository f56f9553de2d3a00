// What a training run draws its sequences from.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace mtrain::data {

// One sequence of S tokens. label[s] is the token after input[s], or -1 where the loss does not
// count.
struct Sample {
  std::vector<int32_t> input, label, position;  // (S)
  std::vector<int64_t> documents;  // lengths of what is packed into it, S in all; empty: not packed
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t seq_length() const = 0;
  virtual int64_t size() const = 0;  // samples before one comes again
  // Sample `index` >= 0 of an endless stream, a pure function of the index. Safe to call from
  // several threads.
  virtual void sample(int64_t index, Sample& out) const = 0;
  virtual std::string note() const { return ""; }  // what the user should know of it
};

}  // namespace mtrain::data
