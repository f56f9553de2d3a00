// Sums a range of gradients over the ranks. It travels in the element type of plan::ReduceOptions.
#pragma once
#include "model/param/parameters.h"
#include "parallel/data/data_groups.h"
#include "plan/options/data_parallel_options.h"

namespace mtrain::parallel {

// Both functions enqueue on DataGroups::grad_stream and return fp32 sums over all ranks of the
// unit's UnitGroups::all, or averages over all ranks that read samples. A unit in fp32 has
// gradients that travel in fp32.
class GradReduce {
 public:
  GradReduce(const DataGroups& groups, const plan::ReduceOptions& options)
      : groups_(groups), options_(options) {}

  void all_reduce(const model::ParamUnit& unit, const Tensor& grad) const;  // in place
  // `whole` holds the parts of a piece in the order of their ranks. Writes the sum of this rank's
  // part to `own`, which may be that part of `whole`, or adds it to `own` if `add`. Replicas
  // all-reduce their parts.
  void reduce_scatter(const model::ParamUnit& unit, const Tensor& whole, const Tensor& own,
                      bool add) const;

 private:
  comm::Reduce op() const { return options_.average ? comm::Reduce::average : comm::Reduce::sum; }
  Tensor on_wire(const model::ParamUnit& unit, const Tensor& grad) const;
  void divide(const UnitGroups& of_unit, const Tensor& sum) const;
  const DataGroups& groups_;
  const plan::ReduceOptions options_;
};

}  // namespace mtrain::parallel
