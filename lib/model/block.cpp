#include "model/block.h"

#include "model/attention.h"
#include "model/mlp.h"

namespace mtrain::model {

Block::Block(ParamStore& params, const GptConfig& c, int64_t layer, const RotaryTables& rotary,
             const Recompute& recompute, const ModelImpls& impls) {
  segments_.push_back(attention_segment(params, c, layer, rotary, recompute, impls));
  segments_.push_back(mlp_segment(params, c, layer, recompute, impls));
}

Hidden Block::forward(Step& step, Hidden h) {
  for (auto& segment : segments_) h = segment->forward(step, h);
  return h;
}

}  // namespace mtrain::model
