// The attention segment of a block: norm, fused qkv projection, optional per-head norms, rotary,
// attention core, projection.
#pragma once
#include <memory>
#include <string>

#include "model/linear.h"
#include "model/model_impls.h"
#include "model/norm.h"
#include "model/recompute.h"
#include "model/rotary.h"
#include "model/segment.h"

namespace mtrain::model {

std::unique_ptr<Segment> attention_segment(ParamStore& params, const GptConfig& c, int64_t layer,
                                           const RotaryTables& rotary, const Recompute& recompute,
                                           const ModelImpls& impls);

}  // namespace mtrain::model
