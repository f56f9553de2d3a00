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

// `rotary` is null if the layer does not rotate.
std::unique_ptr<Segment> attention_segment(ParamStore& params, const spec::ModelSpec& model,
                                           const spec::GroupedAttention& attention, int64_t layer,
                                           const RotaryTables* rotary, const Recompute& recompute,
                                           const ModelImpls& impls);

}  // namespace mtrain::model
