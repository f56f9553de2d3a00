#include "model/stage_pass.h"

namespace mtrain::model {

void StagePass::run_next() {
  MT_CHECK(!done(), "a pass has no more than {} parts", todo_.size());
  todo_[at_++].run(*this);
}

Tensor StagePass::result() {
  MT_CHECK(done(), "a pass is not at its end");
  MT_CHECK(!empties_stash_ || step_.stash.empty(), "activations left after backward");
  return std::move(result_);
}

Tensor StagePass::finish() {
  while (!done()) run_next();
  return result();
}

}  // namespace mtrain::model
