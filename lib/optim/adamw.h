// AdamW, or Adam with L2 weight decay. Master weights are fp32, moments fp32 or bf16. An update
// also writes the bf16 or fp16 values that forward and backward read. Without master weights it
// updates the bf16 values themselves, with stochastic rounding if
// OptimizerOptions::stochastic_rounding is set (Gupta et al. 2015). Moments in bf16 always have
// stochastic rounding. The random numbers are functions of seed, step, parameter and element.
// Therefore every layout rounds alike.
#pragma once
#include <array>
#include <vector>

#include "ops/adamw.h"
#include "optim/optimizer.h"
#include "optim/param_rules.h"

namespace mtrain::optim {

class AdamW : public Optimizer {
 public:
  // Updates the parameters that `has` accepts, and no others.
  AdamW(
      Stream& stream, model::ParamStore& params, const plan::OptimizerOptions& options,
      uint64_t seed = 0, const OwnedState::Has& has = [](const auto&) { return true; });

  void step(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
            const std::function<void(model::ParamUnit&)>& updated = {}) override;
  void write_arguments(Stream& stream, int64_t step, float lr) override;
  std::vector<StateTensor> state() const override;
  // Updates one unit.
  void update(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
              const model::ParamUnit& unit) const;

 private:
  ops::AdamWHyper hyper(int64_t step, float lr, const ParamRule& rule) const;
  // Does the same for a rule of rules_used_. In a capture the launches read factors_R3_.
  ops::AdamWHyper hyper(Stream& stream, int64_t step, float lr, int rule) const;
  int rule_of(const model::Parameter& p) const;  // its place in rules_used_
  // Whether updates of the unit round weights or moments by random numbers.
  bool rounds(const model::ParamUnit& unit) const;
  // The keys of a parameter's random numbers: of its weights and of its moments.
  std::array<uint64_t, 2> keys(int64_t step, const model::Parameter& p) const;
  void update(Stream& stream, const ops::AdamWHyper& hyper, const model::ParamUnit& unit,
              const model::OwnedRange& range, int64_t in_range, int64_t count,
              const Tensor& grad_scale) const;
  void update_rounded(Stream& stream, int64_t step, float lr, const model::ParamUnit& unit,
                      const Tensor& grad_scale) const;

  const plan::OptimizerOptions options_;
  const uint64_t seed_;
  const ParamRules rules_;
  const std::vector<model::ParamUnit*> units_;
  const OwnedState m_, v_;
  std::vector<ParamRule> rules_used_;             // of the parameters that it updates
  std::vector<const model::Parameter*> rounded_;  // the parameters of all units that rounds()
  // What write_arguments() writes: each rule's factors, and the keys of each parameter of
  // rounded_. Absent before.
  Tensor factors_R3_, keys_P2_;
};

}  // namespace mtrain::optim
