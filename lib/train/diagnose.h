// Finds the origin of a loss or gradient that is not finite. The step's micro-batches run again
// with the outputs of every launch checked; the error names the first output that holds a NaN or
// Inf.
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
  // The training to look at. Its parameters must still be those of the failed step.
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
  // Always throws: RunError, or CommError if another rank has found the cause. All ranks call it.
  [[noreturn]] void explain(int64_t step);

 private:
  struct Finding {
    std::string what;  // empty if everything is finite
    // The time at which it was found: first the computation's number in the pipeline's data flow,
    // then the number of launches. The earliest is the cause: values that are not finite travel
    // from stage to stage, and between ranks that share a sequence or a layer, which make equal
    // launches.
    int64_t at = std::numeric_limits<int64_t>::max();
  };
  // Looks at the weights that this rank owns.
  Finding bad_parameter();
  // Runs the step again, and looks at the outputs of its launches.
  Finding bad_output();
  // Throws if another rank has found something earlier than this rank.
  void leave_to_finder(const Finding& found, int64_t step);

  Subject s_;
};

}  // namespace mtrain::train
