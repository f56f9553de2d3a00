// The MLP segment of a block: norm, up projection (gate and up in one matmul where gated),
// activation, down projection.
#pragma once
#include <memory>

#include "model/model_impls.h"
#include "model/segment.h"

namespace mtrain::model {

std::unique_ptr<Segment> mlp_segment(ParamStore& params, const GptConfig& c, int64_t layer,
                                     const ModelImpls& impls);

}  // namespace mtrain::model
