// The parameters that a rank has under a plan, and where they lie in its units, without a device or
// messages: what the model declares and data parallelism divides in a training.
#pragma once
#include <memory>

#include "model/param/parameters.h"
#include "plan/run_plan.h"

namespace mtrain::checkpoint {

// Returns the parameters of `rank`, laid out but without memory.
std::unique_ptr<model::ParamStore> declare_params(const plan::RunPlan& plan, int64_t rank);

}  // namespace mtrain::checkpoint
