// The sum of one range of gradients over the ranks, in the element type that travels.
#pragma once
#include "model/param/parameters.h"
#include "parallel/data/data_groups.h"
#include "plan/options/data_parallel_options.h"

namespace mtrain::parallel {

// Both enqueue on `grad_stream`, and leave fp32 sums over all replicas of the gradient.
class GradReduce {
 public:
  GradReduce(const DataGroups& groups, const plan::ReduceOptions& options)
      : groups_(groups), options_(options) {}

  void all_reduce(const Tensor& grad) const;  // in place
  // `whole`: every rank's part of a piece, one after the other; `own`: this rank's, which may be
  // its part of `whole`; added to where `add`. Across replicas parts are all-reduced.
  void reduce_scatter(const Tensor& whole, const Tensor& own, bool add) const;

 private:
  comm::Reduce op() const { return options_.average ? comm::Reduce::average : comm::Reduce::sum; }
  const DataGroups& groups_;
  const plan::ReduceOptions options_;
};

}  // namespace mtrain::parallel
