// Tensor and sequence parallelism as the model sees them. The heads, the MLP's width and the
// vocabulary are split over ranks; under sequence parallelism the tokens of norms, residuals and
// dropout are, too. This class is one rank alone; lib/parallel/tensor implements several.
#pragma once
#include <memory>
#include <vector>

#include "model/linear.h"

namespace mtrain::model {

class TensorParallel {
 public:
  virtual ~TensorParallel() = default;
  virtual int size() const { return 1; }
  virtual int rank() const { return 0; }
  virtual bool sequence() const { return false; }

  // Makes a linear whose outputs are split over ranks, or one whose inputs are (Shoeybi et al.
  // 2019, "Megatron-LM"). The other side is whole on every rank; under sequence parallelism a rank
  // has its rows of it (Korthikanti et al. 2022, "Reducing activation recomputation").
  // model/linear.h lists the shapes.
  virtual std::unique_ptr<Linear> column_linear(ParamStore& params, const LinearSpec& spec);
  virtual std::unique_ptr<Linear> row_linear(ParamStore& params, const LinearSpec& spec);

  // Returns the rows (T, H) of all ranks: under sequence parallelism each has T / P of them.
  virtual Tensor gather(Step&, const Tensor& x_TH) { return x_TH; }
  // Returns the sum over ranks, which may be in place; under sequence parallelism this rank's rows
  // of it.
  virtual Tensor reduce(Step&, const Tensor& partial_TH) { return partial_TH; }
  // Returns (P, T, 3), made of every rank's (T, 3).
  virtual Tensor gather_sums(Step&, const Tensor& sums_T3);

  // Sums the gradients of parameters of which several ranks hold copies: `compute` sees whole ones
  // from here on. To be called after DataParallel::finish_grads().
  virtual void finish_grads(ParamStore&) {}
  virtual void sum(const Tensor&) {}  // over ranks, in place
  virtual void max(const Tensor&) {}  // over ranks, in place
  // Returns the unit's elements of every rank, one rank after the other, for `compute`.
  virtual Tensor all_ranks(const Tensor& unit) { return unit; }

  // How many of `n` things this rank has. Of fewer things than ranks, several ranks have copies.
  int64_t here(int64_t n) const;
  // The cut of a parameter that is whole on every rank. Under sequence parallelism its gradient is
  // a sum over ranks, since each sees its own rows.
  ShardSpec copied() const { return {.ranks = size(), .rank = rank(), .partial_grad = sequence()}; }
  // The first of this rank's rows among T.
  int64_t first_row(int64_t T) const { return sequence() ? T / size() * rank() : 0; }
  Tensor own_rows(const Tensor& x_T) const;
};

}  // namespace mtrain::model
