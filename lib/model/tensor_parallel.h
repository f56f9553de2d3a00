// The interface of tensor and sequence parallelism. The heads, the MLP's width and the vocabulary
// are split over ranks; under sequence parallelism the tokens of norms, residuals and dropout are,
// too. This class implements a single rank; lib/parallel/tensor implements several.
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

  // Returns the rows (T, H) of all ranks; under sequence parallelism x_TH has T / P of them.
  virtual Tensor gather(Step&, const Tensor& x_TH) { return x_TH; }
  // Returns the sum over ranks of (T, H), which may be in place; under sequence parallelism, this
  // rank's T / P rows of the sum.
  virtual Tensor reduce(Step&, const Tensor& partial_TH) { return partial_TH; }
  // Gathers every rank's (T, 3) into (P, T, 3).
  virtual Tensor gather_sums(Step&, const Tensor& sums_T3);

  // Sums the gradients of parameters that several ranks hold, where each has computed a part of
  // them. From here on `compute` sees whole gradients. Call it after DataParallel::finish_grads().
  virtual void finish_grads(ParamStore&) {}
  // Reduce over ranks, in place.
  virtual void sum(const Tensor&) {}
  virtual void max(const Tensor&) {}
  // Returns this flat tensor of a unit from every rank, one rank after the other, for `compute`.
  virtual Tensor all_ranks(const Tensor& unit) { return unit; }

  // Returns how many of `n` heads, rows or the like this rank has. If there are fewer than ranks,
  // several ranks have the same one.
  int64_t local_count(int64_t n) const;
  // Describes a parameter that every rank has whole. Under sequence parallelism its gradient is a
  // sum over ranks, since each rank sees its own rows.
  ShardSpec replicated() const {
    return {.ranks = size(), .rank = rank(), .partial_grad = sequence()};
  }
  // The number of this rank's first row among the T rows of all ranks.
  int64_t first_row(int64_t T) const { return sequence() ? T / size() * rank() : 0; }
  // Returns this rank's rows of x_T; all of them without sequence parallelism.
  Tensor own_rows(const Tensor& x_T) const;
};

}  // namespace mtrain::model
