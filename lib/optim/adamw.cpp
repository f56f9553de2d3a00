#include "optim/adamw.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/rng.h"
#include "ops/adamw.h"

namespace mtrain::optim {

namespace {

// A range of a parameter's elements. `rounding` maps them to their indices in the layout-free
// tensor, which choose the random numbers.
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
             {.first = runs.front().full,
              .at = part.in_param,
              .columns = p.columns(),
              .stride = p.columns() * p.shard.ranks}}};
  std::vector<Numbered> out;
  for (const model::ElementRun& r : runs) {
    const int64_t begin = std::max(r.here, part.in_param),
                  end = std::min(r.here + r.count, part.in_param + part.count);
    if (begin < end) out.push_back({begin, end - begin, {.first = r.full + begin - r.here}});
  }
  return out;
}

}  // namespace

AdamW::AdamW(Stream& stream, model::ParamStore& params, const plan::OptimizerOptions& options,
             uint64_t seed, const OwnedState::Has& has)
    : options_(options),
      seed_(seed),
      rules_(options),
      units_(params.units()),
      m_(stream, params, options.moments, has),
      v_(stream, params, options.moments, has) {}

std::vector<StateTensor> AdamW::state() const {
  return {{".m", m_, true}, {".v", v_, false}};  // the second moment is a mean of squares
}

ops::AdamWHyper AdamW::hyper(int64_t step, float lr, const ParamRule& rule) const {
  return {.lr = lr * rule.lr_scale,
          .beta1 = float(options_.beta1),
          .beta2 = float(options_.beta2),
          .eps = float(options_.eps),
          .weight_decay = rule.weight_decay,
          .step = step,
          .decoupled_decay = options_.decoupled_decay};
}

void AdamW::update(Stream& stream, const ops::AdamWHyper& hyper, const model::ParamUnit& unit,
                   const model::OwnedRange& r, int64_t in_range, int64_t count,
                   const Tensor& grad_scale) const {
  const auto at = [&](const Tensor& t) { return t ? t.flat(in_range, {count}) : Tensor(); };
  ops::adamw(stream, hyper, at(r.master), m_.at(unit, r, in_range, count),
             v_.at(unit, r, in_range, count), at(r.grad), grad_scale, at(r.value));
}

void AdamW::update_rounded(Stream& stream, int64_t step, float lr, const model::ParamUnit& unit,
                           const Tensor& grad_scale) const {
  for (const model::Parameter* p : unit.params) {
    if (!m_.has(*p)) continue;
    const uint64_t key = rng_key(seed_, fmt::format("rounding.{}.{}", step, p->name)),
                   moments_key = rng_key(seed_, fmt::format("moments.{}.{}", step, p->name));
    for (const model::OwnedPart& part : owned_parts(*p))
      for (const Numbered& n : numbered(*p, part)) {
        ops::AdamWHyper h = hyper(step, lr, rules_.of(*p));
        h.rounding = n.rounding;
        h.rounding.random = options_.stochastic_rounding;
        h.rounding.key = key;
        h.rounding.moments_key = moments_key;
        update(stream, h, unit, *part.range, part.in_range + n.begin - part.in_param, n.count,
               grad_scale);
      }
  }
}

void AdamW::update(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
                   const model::ParamUnit& unit) const {
  const bool masters = unit.owned.empty() || unit.owned.front().master;
  if ((!masters && options_.stochastic_rounding) || options_.moments == DType::bf16)
    return update_rounded(stream, step, lr, unit, grad_scale);
  std::vector<ParamRule> rules;
  const auto number = [&](const model::Parameter& p) -> std::optional<int> {
    if (!m_.has(p)) return {};
    return number_of(rules, rules_.of(p));
  };
  for (const Segment& s : segments_of(unit, number))
    update(stream, hyper(step, lr, rules[size_t(s.number)]), unit, *s.range, s.in_range, s.count,
           grad_scale);
}

void AdamW::step(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
                 const std::function<void(model::ParamUnit&)>& updated) {
  for (model::ParamUnit* unit : units_) {
    update(stream, step, lr, grad_scale, *unit);
    if (updated) updated(*unit);
  }
}

}  // namespace mtrain::optim
