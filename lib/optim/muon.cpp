#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "device/device.h"
#include "ops/elementwise.h"
#include "ops/muon.h"
#include "tensor/upload.h"

namespace mtrain::optim {

namespace {

NewtonSchulz iteration_of(const plan::MuonOptions& o) {
  return {.steps = o.ns_steps,
          .coefficients = o.coefficients,
          .eps = o.eps,
          .gemm = o.bf16 ? DType::bf16 : DType::f32};
}

}  // namespace

double muon_scale(plan::MuonOptions::Scale rule, int64_t rows, int64_t columns) {
  using enum plan::MuonOptions::Scale;
  const auto out = double(rows), in = double(columns);
  switch (rule) {
    case original: return std::sqrt(std::max(1.0, out / in));
    case match_rms_adamw: return 0.2 * std::sqrt(std::max(out, in));
    case spectral: return std::sqrt(std::max(out, in));
    case unit_rms_norm: return std::sqrt(out / in);
  }
  throw BugError("a rule of Muon's scale");
}

Muon::Muon(Stream& stream, model::ParamStore& params, const plan::OptimizerOptions& options,
           uint64_t seed, const MatrixRanks& ranks)
    : options_(options.muon),
      rules_(options),
      units_(params.units()),
      others_(stream, params, options, seed,
              [this](const model::ParamSpec& p) { return !rules_.of(p).muon; }),
      momentum_(stream, params, DType::f32,
                [this](const model::ParamSpec& p) { return rules_.of(p).muon; }),
      exchange_(
          stream, ranks, params, [this](const model::ParamSpec& p) { return momentum_.has(p); },
          [this](int64_t rows, int64_t columns) {
            return iteration_of(options_).flops(rows, columns);
          },
          options_.per_shard) {}

std::vector<StateTensor> Muon::state() const {
  std::vector<StateTensor> all{{".momentum", momentum_, true}};
  for (const StateTensor& tensor : others_.state()) all.push_back(tensor);
  return all;
}

// Returns what this rank owns of the unit's matrices; Segment::number is a place in `rules`.
std::vector<Segment> Muon::matrices(const model::ParamUnit& unit,
                                    std::vector<ParamRule>& rules) const {
  return segments_of(unit, [&](const model::Parameter& p) -> std::optional<int> {
    if (!momentum_.has(p)) return {};
    return number_of(rules, rules_.of(p));
  });
}

void Muon::write_arguments(Stream& stream, int64_t step, float lr) {
  std::vector<ParamRule> rules;
  for (const model::ParamUnit* unit : units_) matrices(*unit, rules);
  std::vector<float> factors;
  for (const ParamRule& rule : rules)
    for (const float f : ops::muon_factors(lr * rule.lr_scale, rule.weight_decay))
      factors.push_back(f);
  if (!factors_R2_)
    factors_R2_ = Tensor::empty(stream, {int64_t(rules.size()), 2}, DType::f32,
                                device::MemoryCategory::buffers);
  tensor::upload(stream, factors_R2_, std::move(factors));
  others_.write_arguments(stream, step, lr);
}

void Muon::step(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
                const std::function<void(model::ParamUnit&)>& updated) {
  const bool captured = stream.device().capture() != nullptr;
  MT_CHECK(!captured || factors_R2_, "an update is captured before write_arguments()");
  std::vector<ParamRule> rules;
  for (const model::ParamUnit* unit : units_)
    for (const Segment& s : matrices(*unit, rules))
      ops::muon_direction(stream, momentum_.at(*unit, *s.range, s.in_range, s.count),
                          s.range->grad.flat(s.in_range, {s.count}), grad_scale,
                          float(options_.momentum), options_.nesterov);
  exchange_.run([&](const MatrixExchange::Owned& m, const Tensor& full_RC) {
    orthogonalize(stream, iteration_of(options_), full_RC);
    ops::scale(
        stream, full_RC,
        float(options_.scale_factor * muon_scale(options_.scale, m.matrix.rows, m.matrix.columns)));
  });
  for (model::ParamUnit* unit : units_) {
    for (const Segment& s : matrices(*unit, rules)) {
      const auto at = [&](const Tensor& t) { return t ? t.flat(s.in_range, {s.count}) : Tensor(); };
      const ParamRule& rule = rules[size_t(s.number)];
      ops::muon_update(stream, at(s.range->master), at(s.range->grad), grad_scale,
                       at(s.range->value), lr * rule.lr_scale, rule.weight_decay,
                       captured ? factors_R2_.flat(2 * int64_t(s.number), {2}) : Tensor());
    }
    others_.update(stream, step, lr, grad_scale, *unit);
    if (updated) updated(*unit);
  }
}

}  // namespace mtrain::optim
