// ddp: every rank holds the whole model and reads other samples; gradients are summed in buckets
// while backward goes on (Li et al. 2020, "PyTorch Distributed").
#pragma once
#include <memory>

#include "comm/group.h"
#include "model/data_parallel.h"

namespace mtrain {

struct DdpOptions {
  bool overlap = true;               // reduce a bucket as soon as it is full, else all at the end
  int64_t bucket_size = 40'000'000;  // parameters
};

// Units of parameters fill buckets in the reverse order of their use in forward, which is the order
// in which backward completes them; a unit is never cut. Reductions run on `dp`, after what
// `compute` has enqueued, and before what it enqueues after finish_grads().
std::unique_ptr<DataParallel> replicated_data_parallel(ParamStore& params, const Group& group,
                                                       const DdpOptions& options, Stream& compute,
                                                       Stream& dp);

// One rank alone: nothing to reduce.
std::unique_ptr<DataParallel> single_rank();

}  // namespace mtrain
