#include "model/block.h"

#include "model/attention.h"
#include "model/mlp.h"

namespace mtrain::model {

Block::Block(ParamStore& params, const GptConfig& c, int64_t layer, const RotaryTables& rotary,
             bool recompute_core, const ModelImpls& parts) {
  segments_.push_back(attention_segment(params, c, layer, rotary, recompute_core, parts));
  segments_.push_back(mlp_segment(params, c, layer, parts));
}

Hidden Block::forward(Step& step, Hidden h) {
  for (auto& segment : segments_) h = segment->forward(step, h);
  return h;
}

}  // namespace mtrain::model
