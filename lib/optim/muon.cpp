#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "ops/elementwise.h"
#include "ops/muon.h"

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

void Muon::step(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
                const std::function<void(model::ParamUnit&)>& updated) {
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
                       at(s.range->value), lr * rule.lr_scale, rule.weight_decay);
    }
    others_.update(stream, step, lr, grad_scale, *unit);
    if (updated) updated(*unit);
  }
}

}  // namespace mtrain::optim
