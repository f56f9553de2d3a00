// The gradients' half of a data-parallel strategy: where they live, and when they are reduced.
#pragma once
#include <memory>

#include "parallel/data/grad_reduce.h"

namespace mtrain::parallel {

class GradSync {
 public:
  virtual ~GradSync() = default;
  virtual void begin_step(int64_t micro_batches) = 0;
  virtual void before_backward(model::ParamUnit&) {}
  virtual void before_grads(model::ParamUnit&) {}
  virtual void ready(model::Parameter& p) = 0;  // once for each micro-batch
  virtual void finish() = 0;  // enqueues what is left; the caller orders `compute` behind it
};

// Whole gradients on every rank (ddp, ZeRO-1), reduced in buckets once all micro-batches are in:
// all-reduced, or, where ranks own parts, reduce-scattered in place. Pieces fill buckets in the
// reverse order of their use in forward, in which backward completes them (Li et al. 2020, "PyTorch
// Distributed"). `overlap`: a bucket is reduced as soon as it is full, else all at the end.
std::unique_ptr<GradSync> bucketed_grads(model::ParamStore& params, const DataGroups& groups,
                                         const plan::ReduceOptions& reduce, int64_t bucket_size,
                                         bool overlap);

// A rank keeps the gradients of its own part (ZeRO-2 and -3; Rajbhandari et al. 2020). Whole ones
// of a unit exist from its backward until they are reduced. `defer`: that is when all
// micro-batches are in, and until then whole gradients of all units add up; else as soon as no
// backward that has begun is to add more. `overlap`: backward goes on meanwhile.
std::unique_ptr<GradSync> sharded_grads(model::ParamStore& params, const DataGroups& groups,
                                        const plan::ReduceOptions& reduce, bool defer,
                                        bool overlap);

}  // namespace mtrain::parallel
