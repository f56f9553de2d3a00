// Tensor and sequence parallelism as the model sees them: the heads, the MLP's width and the
// vocabulary are spread over ranks, and so are the rows of what lies between (norms, residuals,
// dropout) under sequence parallelism. This class is one rank alone; lib/parallel/tensor is
// several.
#pragma once
#include <memory>
#include <vector>

#include "model/linear.h"

namespace mtrain {

class TensorParallel {
 public:
  virtual ~TensorParallel() = default;
  virtual int size() const { return 1; }
  virtual int rank() const { return 0; }
  virtual bool sequence() const { return false; }

  // Whose outputs are spread over ranks, and whose inputs are (Shoeybi et al. 2019, "Megatron-LM").
  // What is not spread is whole on every rank; under sequence parallelism a rank has its rows of it
  // (Korthikanti et al. 2022, "Reducing activation recomputation").
  virtual std::unique_ptr<Linear> column_linear(ParamStore& params, const LinearSpec& spec);
  virtual std::unique_ptr<Linear> row_linear(ParamStore& params, const LinearSpec& spec);

  // The rows of all ranks, where ranks have rows of their own.
  virtual Tensor gather(Step&, const Tensor& x_TH) { return x_TH; }
  // The sum over ranks, which may be in place; this rank's rows where ranks have rows of their own.
  virtual Tensor reduce(Step&, const Tensor& partial_TH) { return partial_TH; }
  // (P, T, 3) of every rank's (T, 3).
  virtual Tensor gather_sums(Step&, const Tensor& sums_T3);

  // From here on `compute` sees whole gradients of what several ranks have copies of. After
  // DataParallel::finish_grads().
  virtual void finish_grads(ParamStore&) {}
  virtual void sum(const Tensor&) {}  // over ranks
  virtual void max(const Tensor&) {}
  // The unit's elements of every rank, one after the other, on `compute`.
  virtual Tensor all_ranks(const Tensor& unit) { return unit; }

  // Of `n` things that are spread over ranks. Where there are fewer, ranks have copies.
  int64_t here(int64_t n) const;
  // Of a parameter that is whole on every rank. Its gradient is a sum over ranks where each sees
  // rows of its own.
  Cut copied() const { return {.ranks = size(), .rank = rank(), .partial_grad = sequence()}; }
  // First of this rank's rows of T.
  int64_t first_row(int64_t T) const { return sequence() ? T / size() * rank() : 0; }
  Tensor own_rows(const Tensor& x_T) const;
};

}  // namespace mtrain
