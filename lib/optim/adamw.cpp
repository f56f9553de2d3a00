#include "optim/adamw.h"

#include <algorithm>

namespace mtrain {

AdamW::AdamW(Stream& on, ParamStore& params, const OptimizerConfig& config) : config_(config) {
  for (ParamUnit* unit : params.units()) {
    State state{unit, {}};
    for (Tensor* t : {&state.moments.m, &state.moments.v}) {
      *t = Tensor::empty(on, {unit->own_count()}, DType::f32, MemoryCategory::optimizer);
      ops::fill(on, *t, 0);
    }
    states_.push_back(state);
  }
}

void AdamW::step(Stream& on, int64_t step, float lr, const Tensor& grad_scale,
                 const std::function<void(ParamUnit&)>& updated) {
  for (const State& s : states_) {
    int64_t first = 0;  // owned ranges follow each other in the moments
    for (const OwnedRange& r : s.unit->owned) {
      const ops::AdamWHyper hyper{lr,
                                  float(config_.betas[0]),
                                  float(config_.betas[1]),
                                  float(config_.eps),
                                  r.decay ? float(config_.weight_decay) : 0,
                                  step};
      const auto part = [&](const Tensor& t) { return t.flat(first, {r.count}); };
      ops::adamw(on, hyper, r.master, part(s.moments.m), part(s.moments.v), r.grad, grad_scale,
                 r.value);
      first += r.count;
    }
    if (updated) updated(*s.unit);
  }
}

const AdamW::Moments& AdamW::moments(const ParamUnit& unit) const {
  const auto at = std::ranges::find(states_, &unit, &State::unit);
  MT_CHECK(at != states_.end(), "unit {} is not of this optimizer", unit.name);
  return at->moments;
}

ops::Clip clip_grad_norm(Stream& on, ParamStore& params,
                         const std::function<void(const Tensor&)>& sum_parts, float max_norm,
                         const Tensor& loss) {
  const Tensor total = Tensor::from_host<double>(on, {1}, {0.0});
  for (const Tensor& grad : counted_grads(params)) ops::sum_squares(on, grad, total);
  sum_parts(total);
  return ops::clip_scale(on, total, loss, max_norm);
}

}  // namespace mtrain
