// Setting weights from outside of an update.
#pragma once
#include <functional>

#include "model/data_parallel.h"
#include "model/fp8.h"

namespace mtrain::optim {

// `write` sets what this rank owns of the weights (ParamStore::set_master). Gathers that still read
// the old values end first; copies on other ranks and in 8 bits are brought up to date afterwards.
// All ranks call it. `fp8` is null without 8-bit linears.
void write_weights(model::ParamStore& params, model::DataParallel& data_parallel,
                   model::Float8Scaling* fp8, const std::function<void()>& write);

}  // namespace mtrain::optim
