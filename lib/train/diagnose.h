// Finds where a loss or gradient that is not finite came from: the step's micro-batches run again
// with every launch's outputs checked, and the first one that holds a NaN or Inf is named.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "comm/host_collectives.h"
#include "model/data_parallel.h"
#include "pipeline/pipeline.h"

namespace mtrain::train {

class Diagnosis {
 public:
  // What is looked at. The parameters must still be those of the failed step.
  struct Subject {
    Device& device;
    Stream& compute;
    model::ParamStore& params;
    model::DataParallel& data_parallel;
    const pipeline::Pipeline& pipeline;
    const comm::HostCollectives& control;
    std::function<void()> run_again;  // computes the step's gradients, and updates nothing
  };
  explicit Diagnosis(Subject subject) : s_(std::move(subject)) {}
  // Always throws RunError, or CommError where another rank has found the cause. All ranks call it.
  [[noreturn]] void explain(int64_t step);

 private:
  struct Finding {
    std::string what;  // empty where all is finite
    // When it was found: where in the data flow of a pipeline, and after how many launches. What is
    // not finite travels between ranks that share a sequence or a layer, all of which make the same
    // launches, and from stage to stage.
    int64_t at = std::numeric_limits<int64_t>::max();
  };
  Finding bad_parameter();  // among those that this rank owns
  Finding bad_output();
  // Throws where only other ranks found something, or found it earlier.
  void leave_to_finder(const Finding& found, int64_t step);

  Subject s_;
};

}  // namespace mtrain::train
