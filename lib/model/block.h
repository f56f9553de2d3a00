// One transformer layer: its segments in order.
#pragma once
#include <memory>
#include <vector>

#include "model/model_impls.h"
#include "model/recompute.h"
#include "model/rotary.h"
#include "model/segment.h"

namespace mtrain::model {

class Block {
 public:
  Block(ParamStore& params, const GptConfig& c, int64_t layer, const RotaryTables& rotary,
        const Recompute& recompute, const ModelImpls& impls);
  Hidden forward(Step& step, Hidden h);

  size_t size() const { return segments_.size(); }
  Segment& segment(size_t i) { return *segments_[i]; }
  // Returns where the kernel that writes the gradient of the layer's output leaves its largest
  // size.
  Tensor gradient_amax() const { return segments_.back()->gradient_amax(); }
  // The unit that holds all parameters of the layer.
  ParamUnit* unit() const { return segments_[0]->unit(); }

 private:
  std::vector<std::unique_ptr<Segment>> segments_;
};

}  // namespace mtrain::model
