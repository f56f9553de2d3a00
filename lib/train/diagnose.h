// Finds where a loss or gradient that is not finite came from: the step's micro-batches run again
// with every launch's outputs checked, and the first one that holds a NaN or Inf is named.
#pragma once
#include <vector>

#include "train/trainer.h"

namespace mtrain {

class Diagnosis {
 public:
  explicit Diagnosis(Trainer& trainer) : trainer_(trainer) {}
  // Always throws RunError. The parameters must still be those of the failed step.
  [[noreturn]] void explain(const std::vector<Batch>& batches, int64_t step);

 private:
  std::string bad_parameter();  // empty where all are finite
  Trainer& trainer_;
};

}  // namespace mtrain
