// Estimates by formula what data parallelism needs beside a rank's own parameters, gradients and
// optimizer state: gathered weights, and gradients on their way to their owners.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/options/data_parallel_options.h"
#include "plan/rank_parameters.h"

namespace mtrain::plan {

// All sizes are bytes.
class DataParallelMemory {
 public:
  // The three must outlive this object.
  DataParallelMemory(const RunPlan& plan, const RankParameters& rank,
                     const LayerActivations& layer);

  // Whether full gradients of all layers add up until the last micro-batch.
  bool defers_reduction() const;
  // Bytes of full gradients on their way to their owners.
  Count passing_gradients() const;
  // Bytes of the largest piece of gradients while it is reduced, before those of the token table.
  Count reduction_buffers() const;
  // Bytes of the token table's gradients while they are reduced, after those of all layers.
  Count table_reduction() const;
  // Bytes of the gradients that ranks of tp sum at the end of a step: under sequence parallelism
  // each has seen a part of the tokens.
  Count replicated_gradients() const;
  // Bytes of the full parameters of the layer in use and of those that are gathered ahead.
  Count gathered_parameters() const;

 private:
  Count full_units(int64_t layers_at_once, int64_t experts_at_once) const;
  Count float8_unit_change(int64_t layers_at_once, int64_t experts_at_once) const;
  std::vector<Count> matrices_from_the_end() const;
  Count largest_piece() const;
  Count largest_expert_piece() const;
  Count reduction_buffers(Count largest, int64_t shards) const;

  const RunPlan& plan_;
  const RankParameters& rank_;
  const LayerActivations& layer_;
  const spec::GroupedAttention& attention_;
  const Layout& l_;
  const DataParallelOptions& dp_;
  const ModelParameters& size_;
  const RankLayers& layers_;
  // Ranks of tp; bytes of an element of the compute type, and of one of the output layer's weight.
  const Count tp_, e_, head_e_;
};

// Over how many ranks values are sharded that `ranks` ranks share.
inline Count data_ranks(int64_t ranks) { return Count(std::max<int64_t>(1, ranks)); }

}  // namespace mtrain::plan
