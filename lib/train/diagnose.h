// Finds the origin of a loss or gradient that is not finite. It runs the step's micro-batches again
// and checks the outputs of every launch. The error names the first output with a NaN or Inf.
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
  // The training to examine. Its parameters must still be those of the failed step.
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
  // Always throws: RunError, or CommError if another rank has found the cause. All ranks must call
  // it.
  [[noreturn]] void explain(int64_t step);

 private:
  struct Finding {
    std::string what;  // empty if everything is finite
    // The logical time of the finding: the computation's number in the pipeline's data flow, and
    // then the number of launches. The earliest finding of all ranks is the cause, since non-finite
    // values spread from stage to stage. They also spread between ranks that share a sequence or a
    // layer, and these ranks make the same launches.
    int64_t at = std::numeric_limits<int64_t>::max();
  };
  // Checks the weights that this rank owns.
  Finding bad_parameter();
  // Runs the step again, and checks the outputs of its launches.
  Finding bad_output();
  // Throws if another rank has found something earlier than this rank.
  void leave_to_finder(const Finding& found, int64_t step);

  Subject s_;
};

}  // namespace mtrain::train
