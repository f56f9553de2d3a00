// The MLP segment of a block: norm, up projection (gate and up in one matmul where gated),
// activation, down projection.
#pragma once
#include <memory>

#include "model/model_impls.h"
#include "model/recompute.h"
#include "model/segment.h"
#include "spec/model_spec.h"

namespace mtrain::model {

// With `recompute.mlp` only the norm's input is kept, and backward computes the rest of the forward
// again up to the activation. The down projection's output is not needed again.
std::unique_ptr<Segment> mlp_segment(ParamStore& params, const spec::ModelSpec& model,
                                     const spec::DenseMlp& mlp, int64_t layer,
                                     const Recompute& recompute, const ModelImpls& impls);

}  // namespace mtrain::model
