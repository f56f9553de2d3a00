// Who writes which elements of a checkpoint. Each rank writes what it owns. Ranks that own the same
// elements divide them evenly, and each element is written once. Such elements are the copies of
// data parallelism, tensors that each rank of tp has, and tied embeddings on two stages. The plan
// is a function of the layout: it needs no messages and no device.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/strided_run.h"
#include "model/param/parameters.h"
#include "plan/run_plan.h"

namespace mtrain::checkpoint {

// The ranks of data parallelism that own the same part of a unit, and this rank's number among
// them.
struct Copies {
  int64_t ranks = 1, rank = 0;
};
struct CopiesOfUnits {
  Copies dense, experts;
  bool shared_table = false;  // the token table is on two ranks of the pipeline
};
CopiesOfUnits copies_of_units(const plan::RunPlan& plan, int64_t rank);

// A kind of tensor that is saved for each parameter that has one: the weights, or a moment.
struct SavedKind {
  std::string suffix;  // follows the parameter's name: ".m"; empty for the weights
  std::function<bool(const model::ParamSpec&)> has;
};
// Weights, and the state of the plan's optimizer.
std::vector<SavedKind> saved_kinds(const plan::RunPlan& plan);

// Elements that a rank writes. They follow each other in its own tensor of the parameter.
struct PlannedRun {
  const model::Parameter* parameter;
  size_t kind;      // of the kinds that the plan was made for
  int64_t here;     // the first element in the rank's tensor
  StridedRun full;  // where they are in the full tensor
};

// Returns what the rank with these parameters, which need no memory, writes: in the order of kinds,
// and within a kind in the order of units and of their owned ranges. Ranks that own the same
// elements must have the same kinds.
std::vector<PlannedRun> save_plan(model::ParamStore& params, const CopiesOfUnits& copies,
                                  const std::vector<SavedKind>& kinds);

// Returns where elements [begin, begin + count) of a rank's tensor, all of them real, are in the
// full tensor.
std::vector<StridedRun> full_runs(const model::ParamSpec& p, int64_t begin, int64_t count);

}  // namespace mtrain::checkpoint
