#include "optim/adamw.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/rng.h"
#include "device/device.h"
#include "ops/adamw.h"
#include "tensor/upload.h"

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
      v_(stream, params, options.moments, has) {
  for (const model::ParamUnit* unit : units_)
    for (const model::Parameter* p : unit->params) {
      if (!m_.has(*p)) continue;
      number_of(rules_used_, rules_.of(*p));
      if (rounds(*unit)) rounded_.push_back(p);
    }
}

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

ops::AdamWHyper AdamW::hyper(Stream& stream, int64_t step, float lr, int rule) const {
  ops::AdamWHyper h = hyper(step, lr, rules_used_[size_t(rule)]);
  if (!stream.device().capture()) return h;
  MT_CHECK(factors_R3_, "an update is captured before write_arguments()");
  h.factors_3 = factors_R3_.flat(3 * int64_t(rule), {3});
  return h;
}

int AdamW::rule_of(const model::Parameter& p) const {
  return int(std::ranges::find(rules_used_, rules_.of(p)) - rules_used_.begin());
}

bool AdamW::rounds(const model::ParamUnit& unit) const {
  const bool masters = unit.owned.empty() || unit.owned.front().master;
  return (!masters && options_.stochastic_rounding) || options_.moments == DType::bf16;
}

std::array<uint64_t, 2> AdamW::keys(int64_t step, const model::Parameter& p) const {
  return {rng_key(seed_, fmt::format("rounding.{}.{}", step, p.name)),
          rng_key(seed_, fmt::format("moments.{}.{}", step, p.name))};
}

void AdamW::write_arguments(Stream& stream, int64_t step, float lr) {
  constexpr auto kBuffers = device::MemoryCategory::buffers;
  const auto R = int64_t(rules_used_.size()), P = int64_t(rounded_.size());
  if (!factors_R3_) {
    factors_R3_ = Tensor::empty(stream, {R, 3}, DType::f32, kBuffers);
    if (P > 0) keys_P2_ = Tensor::empty(stream, {P, 2}, DType::i64, kBuffers);
  }
  std::vector<float> factors;
  for (const ParamRule& rule : rules_used_)
    for (const float f : ops::adamw_factors(hyper(step, lr, rule))) factors.push_back(f);
  tensor::upload(stream, factors_R3_, std::move(factors));
  std::vector<int64_t> all_keys;
  for (const model::Parameter* p : rounded_)
    for (const uint64_t key : keys(step, *p)) all_keys.push_back(int64_t(key));
  if (P > 0) tensor::upload(stream, keys_P2_, std::move(all_keys));
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
    const auto [key, moments_key] = keys(step, *p);
    ops::AdamWHyper h = hyper(stream, step, lr, rule_of(*p));
    if (h.factors_3)
      h.keys_2 = keys_P2_.flat(2 * (std::ranges::find(rounded_, p) - rounded_.begin()), {2});
    for (const model::OwnedPart& part : owned_parts(*p))
      for (const Numbered& n : numbered(*p, part)) {
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
  if (rounds(unit)) return update_rounded(stream, step, lr, unit, grad_scale);
  const auto number = [&](const model::Parameter& p) -> std::optional<int> {
    if (!m_.has(p)) return {};
    return rule_of(p);
  };
  for (const Segment& s : segments_of(unit, number))
    update(stream, hyper(stream, step, lr, s.number), unit, *s.range, s.in_range, s.count,
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
