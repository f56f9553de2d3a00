#include "plan/rank_parameters.h"

#include <algorithm>

#include "plan/run_plan.h"
#include "spec/linears.h"

namespace mtrain::plan {

namespace {

RankLayers layers_of_rank(const RunPlan& plan, const std::vector<int64_t>& stages) {
  const Layout& l = plan.layout;
  RankLayers rank;
  int64_t first = 0;
  for (int64_t s = 0; s < l.stages; ++s) {
    const int64_t layers = l.layers_of_stage.empty() ? 0 : l.layers_of_stage[size_t(s)];
    if (std::find(stages.begin(), stages.end(), s) != stages.end())
      for (int64_t i = first; i < first + layers; ++i) {
        const bool moe = plan.model.layer(i).experts();
        ++(moe ? rank.moe : rank.dense);
        rank.float8 += plan.fp8.has(i);
        rank.float8_moe += plan.fp8.has(i) && moe;
      }
    first += layers;
  }
  return rank;
}

AdapterParameters adapters_of_rank(const RunPlan& plan, const std::vector<int64_t>& stages) {
  const Layout& l = plan.layout;
  AdapterParameters all;
  int64_t first = 0;
  for (int64_t s = 0; plan.model.lora && s < int64_t(l.layers_of_stage.size()); ++s) {
    const int64_t end = first + l.layers_of_stage[size_t(s)];
    for (; first < end; ++first) {
      if (!std::ranges::count(stages, s)) continue;
      const auto [dense, experts] = adapter_parameters(plan.model, first, l.tp, l.expert_tp, l.ep);
      all.dense += dense, all.experts += experts;
    }
  }
  return all;
}

// Elements of the weights of linears in a layer of which each rank of tp has all.
Count whole_linears(const RunPlan& plan, int64_t layer) {
  Count n = 0;
  for (const spec::TensorSpec& t : spec::layer_tensors(plan.model, layer))
    if (spec::is_whole_linear(t)) n += Count(t.full_shape.count());
  return n;
}

}  // namespace

RankParameters::RankParameters(const RunPlan& plan, int64_t pp_rank)
    : plan_(plan),
      l_(plan.layout),
      size_(
          plan.parameters.with_vocabulary(plan.model.vocab, padded_vocab(plan.model.vocab, l_.tp))),
      stages_(stages_of_rank(plan.schedule_shape, pp_rank)),
      layers_(layers_of_rank(plan, stages_)),
      adapters_(adapters_of_rank(plan, stages_)),
      tp_(Count(l_.tp)),
      kv_heads_(Count(plan.model.layer(0).grouped().kv_heads)) {
  if (!plan.fp8.on) return;
  const int64_t last = plan.model.layer_count() - 1;
  whole_of_layer_ = whole_linears(plan, 0);
  if (plan.model.mtp.depths > 0)
    whole_of_predictions_ =
        Count(plan.model.mtp.layers()) * (whole_linears(plan, last) - whole_of_layer_);
}

bool RankParameters::has_predictions() const {
  return std::ranges::count(stages_, l_.prediction_stage()) > 0;
}

int64_t RankParameters::expert_shards() const {
  return l_.ep_shard / std::max<int64_t>(1, l_.dp_replicate);
}

Count RankParameters::of_layer(bool moe) const { return of_kind(moe).on_rank(tp_, kv_heads_); }

Count RankParameters::of_layers() const {
  return Count(layers_.dense) * of_layer(false) + Count(layers_.moe) * of_layer(true) +
         (has_predictions() ? size_.mtp : 0);
}

Count RankParameters::of_head() const {
  return (has_predictions() ? size_.final_norm : 0) + (has_head() ? size_.output / tp_ : 0);
}

Count RankParameters::of_tables() const {
  Count n = 0;
  // A tied table, and that of multi-token prediction, is on the first and on the last stage.
  if (first_stage()) n += size_.token_table / tp_ + size_.position_table;
  n += of_head();
  if (has_predictions() && plan_.model.table_at_end() && !first_stage())
    n += size_.token_table / tp_;
  return n;
}

Count RankParameters::of_experts() const {
  return size_.moe.experts / Count(l_.ep) * size_.moe.expert / Count(l_.expert_tp);
}

Count RankParameters::of_float8_layers() const {
  return sum_of_float8_layers(of_layer(false), of_layer(true)) +
         (predicts_in_float8() ? size_.mtp : 0);
}

Count RankParameters::float8_weights() const {
  return sum_of_float8_layers(linear_weights(false), linear_weights(true)) +
         (predicts_in_float8() ? whole_of_predictions_ : 0);
}

Count RankParameters::linear_weights(bool moe) const {
  return of_layer(moe) - of_kind(moe).replicated + whole_of_layer_;
}

Count RankParameters::sum_of_float8_layers(Count dense, Count moe) const {
  return Count(layers_.float8 - layers_.float8_moe) * dense + Count(layers_.float8_moe) * moe;
}

bool RankParameters::predicts_in_float8() const {
  return has_predictions() && plan_.fp8.has(plan_.model.layer_count() - 1);
}

}  // namespace mtrain::plan
