// Counts the parameters of one rank, before they are sharded over data parallelism.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/layer_activations.h"
#include "plan/model_size.h"

namespace mtrain::plan {

struct RunPlan;

// All counts are numbers of elements.
class RankParameters {
 public:
  // Counts for the ranks whose coordinate along pp is `pp_rank`. The plan must have a vocabulary,
  // and must outlive this object.
  RankParameters(const RunPlan& plan, int64_t pp_rank);

  const std::vector<int64_t>& stages() const { return stages_; }
  const RankLayers& layers() const { return layers_; }
  const AdapterParameters& adapters() const { return adapters_; }  // of the rank's layers
  const ModelParameters& model() const { return size_; }  // with the vocabulary padded for tp

  bool first_stage() const { return stages_.front() == 0; }
  bool has_head() const { return stages_.back() == l_.stages - 1; }
  // Whether the rank has the final norm and the layers of multi-token prediction.
  bool has_predictions() const;
  // The ranks that own different parts of the same experts.
  int64_t expert_shards() const;

  Count dense() const { return of_layers() + of_tables(); }
  Count of_layers() const;   // without those of experts
  Count of_head() const;     // of the output layer's unit
  Count of_tables() const;   // of the token table, positions and the output layer's unit
  Count of_experts() const;  // of a layer's experts
  // The numbers of a dense layer, or of a layer with experts without them.
  Count of_layer(bool moe) const;

  // Parameters of the layers whose GEMMs are in 8 bits, without experts; and those that GEMMs read.
  Count of_float8_layers() const;
  Count float8_weights() const;
  // The numbers of a layer's linear weights, without the projection of multi-token prediction.
  Count linear_weights(bool moe) const;

 private:
  const LayerParameters& of_kind(bool moe) const { return moe ? size_.moe : size_.dense; }
  Count sum_of_float8_layers(Count dense, Count moe) const;
  bool predicts_in_float8() const;

  const RunPlan& plan_;
  const Layout& l_;
  const ModelParameters size_;
  const std::vector<int64_t> stages_;
  const RankLayers layers_;
  const AdapterParameters adapters_;
  const Count tp_, kv_heads_;
  // Elements of the weights of linears of which each rank of tp has all, if GEMMs are in 8 bits: of
  // a layer, and of the projections of multi-token prediction.
  Count whole_of_layer_ = 0, whole_of_predictions_ = 0;
};

}  // namespace mtrain::plan
