// Muon (Jordan et al. 2024) updates the weight matrices of the layers. The update of a matrix is
// its momentum, which a Newton-Schulz iteration makes nearly semi-orthogonal. AdamW updates all
// other parameters: biases and scales, token tables, positions and the output layer.
//
// Every layout makes the same update, that of full matrices: MatrixExchange brings each matrix to
// one rank. Only under MuonOptions::per_shard, Megatron's blockwise mode, each rank of tensor
// parallelism has a part of a matrix that is orthogonalized and scaled alone. A matrix is a weight
// as Hugging Face models have it. For example q, k and v, gate and up, and each expert are separate
// matrices, although mtrain stacks them in one tensor.
#pragma once
#include "optim/adamw.h"
#include "optim/matrix_exchange.h"
#include "optim/newton_schulz.h"

namespace mtrain::optim {

// Returns the factor that multiplies the update of a (rows, columns) matrix. The rules have the
// names of torch and Megatron.
double muon_scale(plan::MuonOptions::Scale rule, int64_t rows, int64_t columns);

class Muon : public Optimizer {
 public:
  // All ranks of ranks.group call this.
  Muon(Stream& stream, model::ParamStore& params, const plan::OptimizerOptions& options,
       uint64_t seed, const MatrixRanks& ranks);

  // Overwrites the gradients.
  void step(Stream& stream, int64_t step, float lr, const Tensor& grad_scale,
            const std::function<void(model::ParamUnit&)>& updated) override;
  void write_arguments(Stream& stream, int64_t step, float lr) override;
  std::vector<StateTensor> state() const override;

 private:
  std::vector<Segment> matrices(const model::ParamUnit& unit, std::vector<ParamRule>& rules) const;

  const plan::MuonOptions options_;
  const ParamRules rules_;
  const std::vector<model::ParamUnit*> units_;
  AdamW others_;
  const OwnedState momentum_;
  const MatrixExchange exchange_;
  Tensor factors_R2_;  // MuonUpdate::factors_in_memory of each rule, by write_arguments()
};

}  // namespace mtrain::optim
