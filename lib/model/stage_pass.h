// A StagePass is a stage's forward or backward of one micro-batch, as a list of parts. They run one
// after the other, or in turns with the parts of another micro-batch's pass.
#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "model/norm.h"
#include "model/segment_id.h"

namespace mtrain::model {

class Gpt;

class StagePass {
 public:
  struct Part {
    SegmentKind kind;
    int64_t layer = -1;  // layer of the stage, from 0; -1: before or behind its layers
  };

  bool done() const { return at_ == todo_.size(); }
  const Part& next() const { return todo_.at(at_).part; }
  void run_next();
  // Returns the tensor for the next stage (forward) or for the stage before (backward); absent if
  // there is no such stage. The pass must be done.
  Tensor result();
  // Runs the parts that are left, and returns result().
  Tensor finish();

 private:
  friend class Gpt;  // makes the list of parts
  struct Todo {
    Part part;
    std::function<void(StagePass&)> run;
  };

  explicit StagePass(const Step& step) : step_(step) {}
  void add(const Part& part, std::function<void(StagePass&)> run) {
    todo_.push_back({part, std::move(run)});
  }

  Step step_;
  std::vector<Todo> todo_;
  size_t at_ = 0;
  bool empties_stash_ = false;  // whether the stash must be empty at the end: a backward
  Hidden h_;                    // what a forward hands from segment to segment
  Tensor result_;               // also the gradient that a backward hands from segment to segment
  Tensor result_amax_;          // its largest size, if the next segment wants it
  Stash not_kept_;  // activations that are dropped after a layer, or after a group's recomputation
};

}  // namespace mtrain::model
