#include "model/block.h"

#include <algorithm>

#include "base/error.h"
#include "model/attention.h"
#include "model/experts/expert_layer.h"
#include "model/latent_attention.h"
#include "model/mlp.h"

namespace mtrain::model {

Block::Block(ParamStore& params, const spec::ModelSpec& model, int64_t layer, RotarySet& rotary,
             const Recompute& recompute, const ModelImpls& impls, const SharedByDepths& shared) {
  const auto add = [&](std::unique_ptr<Segment> s) { segments_.push_back(std::move(s)); };
  const spec::LayerSpec& l = model.layer(layer);
  const auto& attention = l.grouped();
  const RotaryTables* const tables = rotary.of(attention.rotary);
  MT_CHECK(tables || !attention.latent, "latent attention without rotary positions");
  const bool predicts = layer >= model.main_layers();
  if (predicts) add(prediction_input(params, model, layer, impls, shared));
  if (attention.latent)
    add(latent_attention_segment(params, model, attention, layer, *tables, recompute, impls));
  else
    add(attention_segment(params, model, attention, layer, tables, recompute, impls));
  if (const auto* mlp = std::get_if<spec::DenseMlp>(&l.mlp))
    add(mlp_segment(params, model, *mlp, layer, recompute, impls));
  if (const spec::Experts* experts = l.experts())
    for (auto& segment : expert_segments(params, model, *experts, layer, recompute, impls))
      add(std::move(segment));
  if (predicts) add(prediction_output(params, model, layer, impls, shared));
}

std::vector<ParamUnit*> Block::units() const {
  std::vector<ParamUnit*> all;
  for (const auto& segment : segments_)
    if (std::ranges::find(all, segment->unit()) == all.end()) all.push_back(segment->unit());
  return all;
}

}  // namespace mtrain::model
