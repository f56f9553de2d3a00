// The half of a data-parallel strategy that decides where gradients live and when they are reduced.
#pragma once
#include <memory>
#include <set>

#include "parallel/data/grad_reduce.h"

namespace mtrain::parallel {

class GradSync {
 public:
  virtual ~GradSync() = default;
  virtual void begin_step(int64_t micro_batches) = 0;
  virtual void skip_stages(const std::set<int64_t>& stages) = 0;  // as in model::DataParallel
  virtual void before_backward(model::ParamUnit&) {}
  virtual void before_grads(model::ParamUnit&) {}
  // Call it once for each micro-batch and parameter, when that gradient of `p` is complete.
  virtual void ready(model::Parameter& p) = 0;
  // Enqueues the remaining reductions. The caller makes `compute` wait for them.
  virtual void finish() = 0;
};

// Every rank keeps full gradients (ddp, ZeRO-1), which are reduced in buckets once all
// micro-batches have added to them: all-reduced, or reduce-scattered in place if ranks own parts.
// Pieces fill buckets in the reverse order of their use in forward, in which backward completes
// them (Li et al. 2020, "PyTorch Distributed"). A bucket holds pieces of only one stage of the
// pipeline and one UnitGroups, as Megatron wraps each model chunk separately: no stage's reduction
// waits for the backward of another stage. `overlap`: a bucket is reduced as soon as it is
// complete, else all buckets at the end.
std::unique_ptr<GradSync> bucketed_grads(model::ParamStore& params, const DataGroups& groups,
                                         const plan::ReduceOptions& reduce, int64_t bucket_size,
                                         bool overlap);

// A rank keeps the gradients of its own part (ZeRO-2 and -3; Rajbhandari et al. 2020), and full
// gradients of units that are not sharded, which are reduced once a step. Full gradients of a
// sharded unit exist from its backward until they are reduced. `defer`: they are reduced once all
// micro-batches have added to them, and exist for all units until then. Otherwise they are reduced
// once every backward of the unit that has begun has added to them. `overlap`: backward does not
// wait for the reduction.
std::unique_ptr<GradSync> sharded_grads(model::ParamStore& params, const DataGroups& groups,
                                        const plan::ReduceOptions& reduce, bool defer,
                                        bool overlap);

}  // namespace mtrain::parallel
