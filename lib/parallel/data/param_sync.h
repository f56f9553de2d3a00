// The parameters' half of a data-parallel strategy: where they live, and when they are gathered.
#pragma once
#include <memory>

#include "model/param/parameters.h"
#include "model/step.h"
#include "parallel/data/data_groups.h"
#include "plan/options/data_parallel_options.h"

namespace mtrain::parallel {

class ParamSync : public model::ParamHooks {
 public:
  // Enqueued on `compute`: new values of what this rank owns.
  virtual void updated(model::ParamUnit&) {}
  // `compute` may write what this rank owns after this.
  virtual void before_update() {}
};

// Every rank owns everything (ddp).
std::unique_ptr<ParamSync> replicated_params();

// Whole values on every rank, of which each updates a part (ZeRO-1 and -2): gathered from the
// owners after an update. `first_stage_units`: of the rank's first stage, which come first.
std::unique_ptr<ParamSync> gathered_params(model::ParamStore& params, const DataGroups& groups,
                                           const plan::GatheredParamsOptions& options,
                                           size_t first_stage_units);

// A rank keeps its own part alone (ZeRO-3, FSDP; Zhao et al. 2023, "PyTorch FSDP"). Whole values of
// a unit are gathered for its forward, and again for its backward where other units have taken
// their memory meanwhile.
std::unique_ptr<ParamSync> sharded_params(model::ParamStore& params, const DataGroups& groups,
                                          const plan::ShardedParamsOptions& options);

}  // namespace mtrain::parallel
