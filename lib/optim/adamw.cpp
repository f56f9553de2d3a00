#include "optim/adamw.h"

#include <algorithm>

namespace mtrain {

AdamW::AdamW(Stream& on, ParamStore& params, const OptimizerConfig& config)
    : config_(config), units_(params.units()) {
  for (ParamUnit* unit : units_) {
    Moments moments;
    for (Tensor* t : {&moments.m, &moments.v}) {
      *t = Tensor::empty(on, unit->grad.shape(), DType::f32, MemoryCategory::optimizer);
      ops::fill(on, *t, 0);
    }
    moments_.push_back(moments);
  }
}

void AdamW::step(Stream& on, int64_t step, float lr, const Tensor& grad_scale) {
  for (size_t i = 0; i < units_.size(); ++i) {
    const ParamUnit& u = *units_[i];
    const int64_t count = u.grad.count();
    const auto update = [&](int64_t begin, int64_t end, float decay) {
      if (begin == end) return;
      const auto part = [&](const Tensor& t) { return t.flat(begin, {end - begin}); };
      const ops::AdamWHyper hyper{
          lr, float(config_.betas[0]), float(config_.betas[1]), float(config_.eps), decay, step};
      ops::adamw(on, hyper, part(u.master), part(moments_[i].m), part(moments_[i].v), part(u.grad),
                 grad_scale, u.value.dtype() == DType::f32 ? Tensor() : part(u.value));
    };
    update(0, u.decay_end, float(config_.weight_decay));
    update(u.decay_end, count, 0);
  }
}

namespace {
Tensor part_of(const std::vector<ParamUnit*>& units, const std::vector<AdamW::Moments>& moments,
               const Parameter& p, Tensor AdamW::Moments::*which) {
  for (size_t i = 0; i < units.size(); ++i) {
    if (std::ranges::find(units[i]->params, &p) == units[i]->params.end()) continue;
    const auto* base = static_cast<const char*>(units[i]->grad.data());
    const int64_t first = (static_cast<const char*>(p.grad.data()) - base) / 4;
    return (moments[i].*which).flat(first, p.shape);
  }
  throw BugError("parameter " + p.name + " is in no unit");
}
}  // namespace

Tensor AdamW::m_of(const Parameter& p) const { return part_of(units_, moments_, p, &Moments::m); }
Tensor AdamW::v_of(const Parameter& p) const { return part_of(units_, moments_, p, &Moments::v); }

ops::Clip clip_grad_norm(Stream& on, ParamStore& params, float max_norm, const Tensor& loss) {
  const Tensor total = Tensor::from_host<double>(on, {1}, {0.0});
  for (ParamUnit* unit : params.units()) ops::sum_squares(on, unit->grad, total);
  return ops::clip_scale(on, total, loss, max_norm);
}

}  // namespace mtrain
