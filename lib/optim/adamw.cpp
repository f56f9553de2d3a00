#include "optim/adamw.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "base/rng.h"

namespace mtrain::optim {

namespace {

// Returns the first element of an owned range in the unit's moments, where the ranges follow each
// other.
int64_t begin_in_moments(const model::ParamUnit& unit, const model::OwnedRange& range) {
  int64_t first = 0;
  for (const model::OwnedRange* r = unit.owned.data(); r != &range; ++r) first += r->count;
  return first;
}

// A range of a parameter's elements, and the rule that gives their indices in the layout-free
// tensor.
struct Numbered {
  int64_t begin, count;  // elements in the rank's tensor
  kernels::AdamWRounding rounding;
};

std::vector<Numbered> numbered(const model::Parameter& p, const model::OwnedPart& part) {
  const std::vector<model::ElementRun> runs = p.runs();
  // With split columns a run is a part of one row, and all runs follow from one rule.
  if (p.shard.dim == model::ShardSpec::Dim::columns)
    return {{part.in_param,
             part.count,
             {.first = runs.front().whole,
              .at = part.in_param,
              .columns = p.columns(),
              .stride = p.columns() * p.shard.ranks}}};
  std::vector<Numbered> out;
  for (const model::ElementRun& r : runs) {
    const int64_t begin = std::max(r.here, part.in_param),
                  end = std::min(r.here + r.count, part.in_param + part.count);
    if (begin < end) out.push_back({begin, end - begin, {.first = r.whole + begin - r.here}});
  }
  return out;
}

}  // namespace

AdamW::AdamW(Stream& stream, model::ParamStore& params, const plan::OptimizerOptions& options,
             uint64_t seed)
    : options_(options), seed_(seed) {
  for (model::ParamUnit* unit : params.units()) {
    State state{unit, {}};
    for (Tensor* t : {&state.moments.m, &state.moments.v}) {
      *t = Tensor::empty(stream, {unit->own_count()}, options.moments,
                         device::MemoryCategory::optimizer);
      ops::fill(stream, *t, 0);
    }
    states_.push_back(state);
  }
}

ops::AdamWHyper AdamW::hyper(int64_t step, float lr, bool decay) const {
  return {.lr = lr,
          .beta1 = float(options_.beta1),
          .beta2 = float(options_.beta2),
          .eps = float(options_.eps),
          .weight_decay = decay ? float(options_.weight_decay) : 0,
          .step = step,
          .decoupled_decay = options_.decoupled_decay};
}

void AdamW::update(Stream& stream, const ops::AdamWHyper& hyper, const State& s,
                   const model::OwnedRange& r, int64_t in_range, int64_t count,
                   const Tensor& grad_scale) const {
  const int64_t first = begin_in_moments(*s.unit, r) + in_range;
  const auto at = [&](const Tensor& t) { return t ? t.flat(in_range, {count}) : Tensor(); };
  ops::adamw(stream, hyper, at(r.master), s.moments.m.flat(first, {count}),
             s.moments.v.flat(first, {count}), at(r.grad), grad_scale, at(r.value));
}

void AdamW::update_rounded(Stream& stream, int64_t step, float lr, const State& s,
                           const Tensor& grad_scale) const {
  for (const model::Parameter* p : s.unit->params) {
    const uint64_t key = rng_key(seed_, fmt::format("rounding.{}.{}", step, p->name)),
                   moments_key = rng_key(seed_, fmt::format("moments.{}.{}", step, p->name));
    for (const model::OwnedPart& part : owned_parts(*p))
      for (const Numbered& n : numbered(*p, part)) {
        ops::AdamWHyper h = hyper(step, lr, p->decay);
        h.rounding = n.rounding;
        h.rounding.random = options_.rounds_at_random;
        h.rounding.key = key;
        h.rounding.moments_key = moments_key;
        update(stream, h, s, *part.range, part.in_range + n.begin - part.in_param, n.count,
               grad_scale);
      }
  }
}

void AdamW::step(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
                 const std::function<void(model::ParamUnit&)>& updated) {
  for (const State& s : states_) {
    const bool masters = s.unit->owned.empty() || s.unit->owned.front().master;
    if ((!masters && options_.rounds_at_random) || options_.moments == DType::bf16)
      update_rounded(stream, step, lr, s, grad_scale);
    else
      for (const model::OwnedRange& r : s.unit->owned)
        update(stream, hyper(step, lr, r.decay), s, r, 0, r.count, grad_scale);
    if (updated) updated(*s.unit);
  }
}

const AdamW::Moments& AdamW::moments(const model::ParamUnit& unit) const {
  const auto at = std::ranges::find(states_, &unit, &State::unit);
  MT_CHECK(at != states_.end(), "unit {} is unknown to the optimizer", unit.name);
  return at->moments;
}

void AdamW::set_moment(model::ParamUploader& uploader, const model::Parameter& p,
                       Tensor Moments::*which, const model::ReadElements& read) {
  const Tensor& own = moments(*p.unit).*which;
  uploader.set(p, read, [&](const model::OwnedPart& part) {
    return own.flat(begin_in_moments(*p.unit, *part.range) + part.in_range, {part.count});
  });
}

ops::Clip clip_grad_norm(Stream& stream, model::ParamStore& params,
                         const std::function<void(const Tensor&)>& sum_parts, float max_norm,
                         const Tensor& loss, double unscale) {
  // Copies are summed apart: they must be finite, too, and do not count.
  const Tensor totals = Tensor::from_host<double>(stream, {2}, {0.0, 0.0});
  const model::NormGrads grads = norm_grads(params);
  for (const Tensor& grad : grads.counted) ops::sum_squares(stream, grad, totals.flat(0, {1}));
  for (const Tensor& grad : grads.copies) ops::sum_squares(stream, grad, totals.flat(1, {1}));
  sum_parts(totals);
  return ops::clip_scale(stream, totals, loss, max_norm, unscale);
}

}  // namespace mtrain::optim
