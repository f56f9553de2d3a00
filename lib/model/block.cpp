#include "model/block.h"

#include <algorithm>

#include "model/attention.h"
#include "model/experts/expert_layer.h"
#include "model/mlp.h"

namespace mtrain::model {

Block::Block(ParamStore& params, const GptConfig& c, int64_t layer, const RotaryTables& rotary,
             const Recompute& recompute, const ModelImpls& impls) {
  segments_.push_back(attention_segment(params, c, layer, rotary, recompute, impls));
  if (!c.experts.in_layer(layer)) {
    segments_.push_back(mlp_segment(params, c, layer, recompute, impls));
    return;
  }
  for (auto& segment : expert_segments(params, c, layer, recompute, impls))
    segments_.push_back(std::move(segment));
}

std::vector<ParamUnit*> Block::units() const {
  std::vector<ParamUnit*> all;
  for (const auto& segment : segments_)
    if (std::ranges::find(all, segment->unit()) == all.end()) all.push_back(segment->unit());
  return all;
}

}  // namespace mtrain::model
