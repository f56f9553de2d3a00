// A stage's forward or backward of one micro-batch as a list of parts: run one after the other, or
// in turns with those of another micro-batch's pass.
#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "model/norm.h"

namespace mtrain {

class Gpt;

class StagePass {
 public:
  struct Part {
    int64_t layer = -1;     // of the stage, from 0; -1: before or behind its layers
    const char* what = "";  // a segment's name, or "embedding", "head", "recompute", "output"
  };

  bool done() const { return at_ == todo_.size(); }
  const Part& next() const { return todo_.at(at_).part; }
  void run_next();
  // Of a pass that is done: what the next stage takes, or the stage before; absent where there is
  // none.
  Tensor result();
  // Runs what is left.
  Tensor finish();

 private:
  friend class Gpt;  // which lists the parts
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
  bool empties_stash_ = false;
  Hidden h_;        // between the layers of a forward
  Tensor result_;   // of a backward, also between its layers
  Stash not_kept_;  // activations that do not outlive a layer, or a group's recomputation
};

}  // namespace mtrain
