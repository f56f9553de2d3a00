// A StagePass is a stage's forward or backward of one micro-batch, as a list of parts. They run one
// after the other, or in turns with the parts of another micro-batch's pass.
#pragma once
#include <any>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "model/flow.h"
#include "model/segment_id.h"

namespace mtrain::model {

class Gpt;

class StagePass {
 public:
  struct Part {
    SegmentKind kind;
    int64_t layer = -1;  // layer of the stage, from 0; -1: before or after its layers
  };

  // Gives the pass the result of the previous stage (forward) or of the next stage (backward). A
  // pass that needs it must have it before its first part runs.
  void set_input(Tensor input);
  size_t size() const { return todo_.size(); }
  const Part& part(size_t i) const { return todo_.at(i).part; }
  bool done() const { return at_ == todo_.size(); }
  const Part& next() const { return part(at_); }
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

  void set_predictions(std::shared_ptr<const Predictions> predictions) {
    predictions_ = std::move(predictions);
    step_.predictions = predictions_.get();
  }

  Step step_;
  std::shared_ptr<const Predictions> predictions_;  // of step_
  std::vector<Todo> todo_;
  size_t at_ = 0;
  bool backward_ = false;     // the stash must then be empty at the end
  bool needs_input_ = false;  // another stage makes it
  Flow flow_;                 // goes from part to part
  Flow recomputed_;           // goes from layer to layer of a recomputation
  // Step::forward_results of the group of layers that is computed, or computed again.
  std::shared_ptr<std::deque<std::any>> forward_results_;
  Tensor result_;  // of a forward
  // In a stage that sends the rows of all depths: these rows, or their gradients, by depth.
  std::vector<Tensor> depth_rows_;
  Stash not_kept_;  // activations, dropped after a segment, or after a group's recomputation
};

}  // namespace mtrain::model
