// The parameters' half of a data-parallel strategy: where they live, and when they are gathered.
#pragma once
#include <limits>
#include <memory>

#include "model/parameters.h"
#include "model/step.h"
#include "parallel/data_groups.h"

namespace mtrain {

class ParamSide : public UnitUse {
 public:
  // Enqueued on `compute`: new values of what this rank owns.
  virtual void updated(ParamUnit&) {}
  // `compute` may write what this rank owns after this.
  virtual void before_update() {}
};

// Every rank owns everything (ddp).
std::unique_ptr<ParamSide> replicated_params();

struct GatheredParamsOptions {
  bool overlap = true;  // behind the updates of later units and the next forward, else at once
  // Of so many first units the gather starts with their own update, of the others after the last
  // unit's.
  size_t during_update = std::numeric_limits<size_t>::max();
  bool together = true;  // those all start then; else each when forward comes to the unit before it
};

// Whole values on every rank, of which each updates a part (ZeRO-1 and -2): gathered from the
// owners after an update.
std::unique_ptr<ParamSide> gathered_params(ParamStore& params, const DataGroups& groups,
                                           const GatheredParamsOptions& options);

struct ShardedParamsOptions {
  bool reshard_after_forward = true;  // give whole values up between forward and backward
  int64_t forward_prefetch = 1, backward_prefetch = 2;  // units gathered ahead of their use
};

// A rank keeps its own part alone (ZeRO-3, FSDP; Zhao et al. 2023, "PyTorch FSDP"). Whole values of
// a unit are gathered for its forward, and again for its backward where other units have taken
// their memory meanwhile.
std::unique_ptr<ParamSide> sharded_params(ParamStore& params, const DataGroups& groups,
                                          const ShardedParamsOptions& options);

}  // namespace mtrain
