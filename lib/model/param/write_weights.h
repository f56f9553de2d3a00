// Sets weights outside of an optimizer's update: initial values, checkpoints, and changes by
// callers.
#pragma once
#include <functional>

#include "model/data_parallel.h"
#include "model/quantizer.h"

namespace mtrain::model {

// `write` sets the weights that this rank owns (ParamStore::initialize or ParamUploader). Gathers
// that still read the old values end first. Afterwards the copies on other ranks and in 8 bits are
// out of date, and are made again before their next use. All ranks call it. `quantizer` is null
// without 8-bit linears.
void write_weights(ParamStore& params, DataParallel& data_parallel, Quantizer* quantizer,
                   const std::function<void()>& write);

}  // namespace mtrain::model
