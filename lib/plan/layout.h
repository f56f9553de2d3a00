// A Layout holds the sizes that follow from a recipe and a number of ranks: how many ranks each
// parallelism has, and how layers and micro-batches divide over them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/shard_level.h"

namespace mtrain::recipe {
struct Recipe;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct Layout {
  int64_t world = 1, tp = 1, pp = 1, cp = 1, ep = 1;
  int64_t dp = 1, dp_replicate = 1, dp_shard = 1;  // dp = dp_replicate x dp_shard
  int64_t expert_tp = 1;  // ranks that each expert is divided over: tp or 1
  int64_t ep_shard = 1;   // ranks with the same experts: dp x cp / ep, x tp if undivided
  int64_t stages_per_rank = 1, stages = 1;  // stages = pp x stages_per_rank
  int64_t micro_batch = 1;                  // samples
  int64_t micro_batches = 1;                // per rank and flush of the pipeline
  int64_t flushes = 1;                      // pipeline flushes per step
  std::vector<int64_t> layers_of_stage;     // transformer layers, one entry per stage
  // The layers of multi-token prediction are in the stage before the last one, which has the output
  // layer alone. Otherwise they are in the last stage.
  bool predicts_apart = false;

  // The stage with the model's final norm and the layers of multi-token prediction.
  int64_t prediction_stage() const { return stages - (predicts_apart ? 2 : 1); }
  int64_t step_micro_batches() const { return micro_batches * flushes; }  // per rank
  int64_t gradient_ranks() const { return dp * cp; }  // gradients are reduced over these
  // Whether gradients of any unit are reduced: undivided experts may be replicated over tp alone.
  bool shares_gradients() const { return gradient_ranks() > 1 || ep_shard > 1; }
  // Whether each tp rank has undivided experts. Their gradients are then summed over different
  // ranks from those of the layer's other parameters.
  bool undivided_experts() const { return expert_tp == 1 && tp > 1; }
};

// Returns the layout of `world` ranks; 0 stands for the smallest world that fits. Rounds sizes
// below 1 and divisions with a remainder, so every number is usable. The rules (plan/rules/) report
// them.
Layout layout_of(const recipe::Recipe& recipe, int64_t world);

// Whether each local batch of a rank is one flush of the pipeline. It is if the recipe gives
// AutoModel's local_batch_size, and also the size of the micro-batches that the local batch is
// divided into.
bool local_batch_is_flush(const recipe::Recipe& recipe);
// Returns how often a step fills and drains the pipeline: once, or once for each local batch.
// Rounds down; the rules report a remainder.
int64_t flushes_of(const recipe::Recipe& recipe, int64_t dp);

// Returns the number of units that a pipeline's stages share: the layers, plus one each for the
// embedding and the loss if the recipe counts them.
int64_t split_units(const recipe::Recipe& recipe);
// Whether every stage gets a layer if the first and the last rank get the recipe's numbers of
// layers and the other ranks share the rest.
bool can_split_by_ranks(const recipe::Recipe& recipe, int64_t stages);

// Returns the number that must divide the length of a sample that is not packed: each rank of cp
// has two chunks of the sample, and sequence_parallel divides a rank's tokens by tp.
int64_t sequence_multiple(const recipe::Recipe& recipe, const Layout& layout);

// Returns the vocabulary as the model stores it, which is a multiple of 128 x tp.
int64_t padded_vocab(int64_t vocab, int64_t tp);

// Under fsdp2 with a pipeline and reshard_after_forward auto, this many of a rank's stages have
// full parameters at once: those that are used next.
constexpr int64_t kStagesGathered = 3;
// Returns the ranks that share each expert's matrices: tp_size, unless the recipe says 1. Without
// experts it is tp_size.
int64_t expert_tp(const recipe::Recipe& recipe);
// Returns the number of ranks of a pipeline stage over which experts, or their tp parts, are
// spread. With dp_replicate_size these are the ranks of one replica.
int64_t expert_ranks(const recipe::Recipe& recipe, const Layout& layout);

// Returns for how many micro-batches the output layer's weight gradients are deferred under
// defer_embedding_wgrad_compute.
int64_t deferred_outputs(const recipe::Recipe& recipe, const Layout& layout);
// Returns which state the recipe's data-parallel strategy shards.
ShardLevel shard_level(const recipe::Recipe& recipe);

// Returns the nearest multiples of `of` for hints: "12 or 16".
std::string nearest_multiples(int64_t value, int64_t of);
// Returns "1, 2 or 4". There is at least one value.
std::string either(const std::vector<int64_t>& values);

// A `layout` such as Et*4|t*5|t*4mL: the numbers of decoder layers per stage, and the depths of
// multi-token prediction. These are in the last stage, or all in the stage before it
// (Layout::predicts_apart).
struct PipelineLayout {
  std::vector<int64_t> layers_of_stage;
  int64_t predictions = 0;
  bool predicts_apart = false;
};
// Returns false if the text is wrong; `reason` then says why.
bool parse_pipeline_layout(const std::string& text, PipelineLayout& layout, std::string& reason);

}  // namespace mtrain::plan
