// Muon (Jordan et al. 2024): the weight matrices of the layers are updated by their momentum, made
// nearly semi-orthogonal by a Newton-Schulz iteration. AdamW updates all other parameters: biases
// and scales, token tables, positions and the output layer.
//
// The update is that of whole matrices under every layout: MatrixExchange brings each to one rank.
// MuonOptions::per_shard is Megatron's blockwise mode: the part of a matrix that a rank of tensor
// parallelism has is orthogonalized and scaled alone.
// A matrix is a weight as Hugging Face models have it: q, k and v, gate and up, and each expert are
// matrices of their own, though mtrain stacks them in one tensor.
#pragma once
#include "optim/adamw.h"
#include "optim/matrix_exchange.h"
#include "optim/newton_schulz.h"

namespace mtrain::optim {

// Returns the factor of a matrix' update: torch's and Megatron's rules by name.
double muon_scale(plan::MuonOptions::Scale rule, int64_t rows, int64_t columns);

class Muon : public Optimizer {
 public:
  // The ranks of the group all call this.
  Muon(Stream& stream, model::ParamStore& params, const plan::OptimizerOptions& options,
       uint64_t seed, const MatrixRanks& ranks);

  // Overwrites the gradients.
  void step(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
            const std::function<void(model::ParamUnit&)>& updated) override;
  std::vector<StateTensor> state() const override;

 private:
  std::vector<Segment> matrices(const model::ParamUnit& unit, std::vector<ParamRule>& rules) const;

  const plan::MuonOptions options_;
  const ParamRules rules_;
  const std::vector<model::ParamUnit*> units_;
  const AdamW others_;
  const OwnedState momentum_;
  const MatrixExchange exchange_;
};

}  // namespace mtrain::optim
