// One transformer layer: its segments in order.
#pragma once
#include <memory>
#include <vector>

#include "model/model_impls.h"
#include "model/recompute.h"
#include "model/rotary.h"
#include "model/segment.h"
#include "model/token_prediction.h"
#include "ops/operand.h"
#include "spec/model_spec.h"

namespace mtrain::model {

class Block {
 public:
  // A layer of multi-token prediction refers to `shared`.
  Block(ParamStore& params, const spec::ModelSpec& model, int64_t layer, RotarySet& rotary,
        const Recompute& recompute, const ModelImpls& impls, const SharedByDepths& shared);
  size_t size() const { return segments_.size(); }
  Segment& segment(size_t i) { return *segments_[i]; }
  // Returns what the kernel that writes the gradient of the layer's output does for the layer.
  ops::Destination gradient() const { return segments_.back()->gradient(); }
  // The unit of the layer's parameters, but for those of its experts.
  ParamUnit* unit() const { return segments_[0]->unit(); }
  // All units of the layer, in the order of forward.
  std::vector<ParamUnit*> units() const;

 private:
  std::vector<std::unique_ptr<Segment>> segments_;
};

}  // namespace mtrain::model
