// The second half of a layer with experts, in five segments: route | dispatch | mlp | combine |
// merge. A token's K experts compute on copies of it, and their outputs are added under the
// router's weights; a shared expert sees every token.
//
// T tokens, H hidden, E experts, K experts of a token, R = T K rows of experts, F an expert's width
#pragma once
#include <memory>
#include <vector>

#include "model/model_impls.h"
#include "model/recompute.h"
#include "model/segment.h"

namespace mtrain::model {

std::vector<std::unique_ptr<Segment>> expert_segments(ParamStore& params,
                                                      const spec::ModelSpec& model,
                                                      const spec::Experts& experts, int64_t layer,
                                                      const Recompute& recompute,
                                                      const ModelImpls& impls);

}  // namespace mtrain::model
