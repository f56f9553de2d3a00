// Finds where a loss or gradient that is not finite came from: the step's micro-batches run again
// with every launch's outputs checked, and the first one that holds a NaN or Inf is named.
#pragma once
#include <limits>
#include <string>
#include <vector>

#include "train/trainer.h"

namespace mtrain {

class Diagnosis {
 public:
  explicit Diagnosis(Trainer& trainer) : trainer_(trainer) {}
  // Always throws RunError. The parameters must still be those of the failed step.
  [[noreturn]] void explain(const std::vector<Batch>& batches, int64_t step);

 private:
  struct Finding {
    std::string what;  // empty where all is finite
    // When it was found: where in the data flow of a pipeline, and after how many launches. What is
    // not finite travels between ranks that share a sequence or a layer, all of which make the same
    // launches, and from stage to stage.
    int64_t at = std::numeric_limits<int64_t>::max();
  };
  Finding bad_parameter();  // of what this rank owns
  Finding bad_output(const std::vector<Batch>& batches, int64_t step);
  // Throws where only other ranks found something, or found it earlier.
  void leave_to_finder(const Finding& found, int64_t step);
  Trainer& trainer_;
};

}  // namespace mtrain
