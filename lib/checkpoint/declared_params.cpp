#include "checkpoint/declared_params.h"

#include <algorithm>

#include "checkpoint/save_plan.h"
#include "plan/process_groups.h"
#include "spec/linears.h"

namespace mtrain::checkpoint {

namespace {

using model::ParamSpec;
using model::ShardSpec;
using model::UnitId;
using model::UnitKind;
using spec::TensorSpec;

class Declaration {
 public:
  Declaration(const plan::RunPlan& plan, int64_t rank)
      : plan_(plan),
        moe_(plan.moe_mesh()),
        rank_(rank),
        tp_rank_(int(plan.mesh.coordinate(rank, mesh::Axis::tp))) {}

  std::unique_ptr<model::ParamStore> make() {
    const schedule::Schedule& s = plan_.schedule;
    const int64_t own = plan_.mesh.coordinate(rank_, mesh::Axis::pp);
    int64_t end = 0;
    for (int64_t stage = 0; stage < s.stages; ++stage) {
      const int64_t begin = end;
      end += plan_.layout.layers_of_stage[size_t(stage)];
      if (s.rank_of(stage) != own) continue;
      params_->begin_stage(stage);
      if (stage == 0) add_embedding();
      for (int64_t layer = begin; layer < end; ++layer) add_layer(layer);
      add_output(stage == plan_.layout.prediction_stage(), stage + 1 == s.stages);
    }
    params_->lay_out([this](const model::ParamUnit& unit) { return sharding(unit); });
    return std::move(params_);
  }

 private:
  int tp() const { return int(plan_.layout.tp); }

  ShardSpec over_tp(const TensorSpec& t) const {
    ShardSpec shard{.ranks = tp(), .rank = tp_rank_};
    using Dim = spec::TensorSplit::Dim;
    if (t.split.dim == Dim::columns) shard.dim = ShardSpec::Dim::columns;
    if (t.split.dim != Dim::rows) return shard;
    shard.dim = ShardSpec::Dim::rows;
    shard.sections = model::sections_of(t);
    if (t.split.padded)
      shard.sections = {{plan::padded_vocab(plan_.model.vocab, plan_.layout.tp), 1}};
    return shard;
  }

  void add_embedding() {
    const bool table_alone = plan::shares_table(plan_);
    for (const TensorSpec& t : spec::embedding_tensors(plan_.model)) {
      const bool table = t.split.padded;
      params_->add(table || !table_alone ? UnitKind::embedding : UnitKind::positions,
                   part_of(t, over_tp(t)));
    }
  }

  void add_layer(int64_t layer) {
    const bool in_8_bits = plan_.fp8.has(layer) && one_form_of_weights();
    for (const TensorSpec& t : spec::layer_tensors(plan_.model, layer)) {
      if (t.role == TensorRole::state) continue;
      ParamSpec part = t.split.experts ? expert_part(t) : part_of(t, over_tp(t));
      part.quantized = in_8_bits && spec::is_quantized(t);
      params_->add(UnitId(t.split.experts ? UnitKind::experts : UnitKind::layer, layer),
                   std::move(part));
    }
  }

  // The ranks of tp divide each expert as they do a dense MLP, or have undivided ones.
  ParamSpec expert_part(const TensorSpec& t) const {
    const plan::Layout& l = plan_.layout;
    const bool divided = l.tp > 1 && !l.undivided_experts();
    return part_of(t, divided ? over_tp(t) : ShardSpec{},
                   {.ranks = int(l.ep), .rank = int(moe_.coordinate(rank_, mesh::Axis::ep))});
  }

  // The final norm and the output layer may be in different stages.
  void add_output(bool norm, bool layer) {
    for (const TensorSpec& t : spec::output_tensors(plan_.model))
      if (t.split.padded ? layer : norm)
        params_->add(UnitKind::output, part_of(t, over_tp(t)))->unit->in_fp32 =
            plan_.head_in_fp32 && layer && !plan_.model.tied_embeddings;
    if (!norm || !plan::shares_table(plan_)) return;
    const TensorSpec table = spec::embedding_tensors(plan_.model).front();
    ParamSpec copy = part_of(table, over_tp(table));
    copy.copy = true;
    params_->add(UnitKind::embedding, std::move(copy));
  }

  bool one_form_of_weights() const {
    const ScaleBlocks blocks = plan_.fp8.formats.weight.blocks;
    return blocks == ScaleBlocks::none || blocks == ScaleBlocks::square_128;
  }

  model::Sharding sharding(const model::ParamUnit& unit) const {
    const plan::DataParallelOptions& o = plan_.data_parallel;
    const plan::Layout& l = plan_.layout;
    if (l.gradient_ranks() == 1 && !l.undivided_experts()) return {};
    model::Sharding s;
    s.piece = o.bucket_size;
    const bool experts = unit.id.kind == UnitKind::experts && (l.ep > 1 || l.undivided_experts());
    const mesh::Mesh& mesh = experts ? moe_ : plan_.mesh;
    const mesh::Axes axes = experts ? mesh::Axes{mesh::Axis::ep_shard} : mesh::dp_shard_cp_axes();
    if (o.shards == plan::ShardLevel::nothing || mesh.size(axes) == 1) return s;
    s.ranks = int(mesh.size(axes));
    s.rank = int(mesh.index_in_group(rank_, axes));
    return s;
  }

  const plan::RunPlan& plan_;
  const mesh::Mesh moe_;
  const int64_t rank_;
  const int tp_rank_;
  std::unique_ptr<model::ParamStore> params_ = std::make_unique<model::ParamStore>();
};

}  // namespace

std::unique_ptr<model::ParamStore> declare_params(const plan::RunPlan& plan, int64_t rank) {
  return Declaration(plan, rank).make();
}

}  // namespace mtrain::checkpoint
