#include "model/stage_pass.h"

namespace mtrain::model {

void StagePass::set_input(Tensor input) {
  (backward_ ? flow_.d_TH.plain : flow_.h.x_TH) = std::move(input);
}

void StagePass::run_next() {
  MT_CHECK(!done(), "all {} parts of the pass have run", todo_.size());
  MT_CHECK(at_ > 0 || !needs_input_ || (backward_ ? flow_.d_TH.plain : flow_.h.x_TH),
           "a pass that begins with {} is given no input", segment_name({next().kind}));
  todo_[at_++].run(*this);
}

Tensor StagePass::result() {
  MT_CHECK(done(), "{} of {} parts of the pass have run", at_, todo_.size());
  if (!backward_) return std::move(result_);
  MT_CHECK(step_.stash->empty(), "the stash holds activations after backward");
  return std::move(flow_.d_TH.plain);
}

Tensor StagePass::finish() {
  while (!done()) run_next();
  return result();
}

}  // namespace mtrain::model
