#include "model/embedding.h"

#include <utility>

#include "device/device.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace mtrain::model {

ParamSpec vocabulary_part(const spec::TensorSpec& table, const ModelImpls& impls) {
  const TensorParallel& tensor = *impls.tensor;
  const int64_t rows = impls.padded_vocab > 0 ? impls.padded_vocab : table.full_shape[0];
  return part_of(table, {.ranks = tensor.size(),
                         .rank = tensor.rank(),
                         .dim = ShardSpec::Dim::rows,
                         .sections = {{rows, 1}}});
}

Parameter* add_table(ParamStore& params, const spec::ModelSpec& model, const ModelImpls& impls,
                     bool copy) {
  ParamSpec table =
      vocabulary_part(tensor_of(spec::embedding_tensors(model), "embedding.weight"), impls);
  // The first contribution to a tied table's gradient is the output layer's GEMM. An untied table's
  // gradient only gets the rows that the embedding adds.
  table.matmul_grad = model.tied_embeddings;
  table.copy = copy;
  return params.add(UnitKind::embedding, std::move(table));
}

Parameter* token_table(ParamStore& params) {
  ParamUnit* unit = params.unit(UnitKind::embedding);
  return unit ? unit->params.front() : nullptr;
}

Embedding::Embedding(ParamStore& params, const spec::ModelSpec& model, const ModelImpls& impls,
                     bool table_alone)
    : scale_(model.embedding_scale),
      dropout_(float(model.embedding_dropout)),
      tensor_(impls.tensor),
      table_(add_table(params, model, impls, false)) {
  if (!model.learned_positions) return;
  ParamSpec positions =
      part_of(tensor_of(spec::embedding_tensors(model), "position_embedding.weight"),
              tensor_->replicated());
  positions.matmul_grad = false;
  positions_ =
      params.add(table_alone ? UnitKind::positions : UnitKind::embedding, std::move(positions));
}

Embedding::Embedding(Parameter* table, const spec::ModelSpec& model, const ModelImpls& impls)
    : scale_(model.embedding_scale),
      dropout_(float(model.embedding_dropout)),
      tensor_(impls.tensor),
      table_(table) {
  MT_CHECK(table_, "this rank has no token table");
}

std::vector<ParamUnit*> Embedding::units() const {
  if (!positions_ || positions_->unit == table_->unit) return {table_->unit};
  return {table_->unit, positions_->unit};
}

ops::VocabularyShard Embedding::shard() const {
  return {tensor_->rank() * table_->shape[0], tensor_->size() * table_->shape[0]};
}

float Embedding::scale(DType dtype) const {
  return dtype == DType::bf16  ? float(bf16(scale_))
         : dtype == DType::f16 ? float(f16(scale_))
                               : scale_;
}

// Each rank looks up the ids of its own rows of the table. The learned positions are added to the
// sum over ranks.
Tensor Embedding::look_up(Step& step, const Tensor& id_T) {
  const Tensor x_TH =
      tensor_->reduce(step, ops::embedding(step.compute, id_T, table_->value, {}, {}, shard(),
                                           scale(table_->value.dtype())));
  if (!positions_) return x_TH;
  const Tensor position_T = tensor_->own_rows(step.seq.position_T);
  return ops::add(step.compute, x_TH,
                  ops::embedding(step.compute, position_T, positions_->value, {}, {}));
}

Tensor Embedding::forward(Step& step, const Tensor& id_T, const SegmentId& segment) {
  const Device::Scope scope(step.compute.device(), segment_name(segment));
  const Tensor x_TH = tensor_->size() > 1
                          ? look_up(step, id_T)
                          : ops::embedding(step.compute, id_T, table_->value, step.seq.position_T,
                                           positions_ ? positions_->value : Tensor(), {},
                                           scale(table_->value.dtype()));
  drop(step, x_TH, segment, dropout_, tensor_->first_row(step.seq.T()));
  return x_TH;
}

void Embedding::backward(Step& step, const Tensor& id_T, const Tensor& d_TH) {
  if (table_->frozen) return;
  const Device::Scope scope(step.compute.device(), segment_name(kSegment));
  step.wgrad.push(gradients(step, id_T, d_TH, kSegment));
}

void Embedding::add_gradient(Step& step, const Tensor& id_T, const Tensor& d_TH,
                             const SegmentId& segment, bool completes) {
  if (table_->frozen) return;
  const WgradQueue::Entry entry = gradients(step, id_T, d_TH, segment);
  entry.run();
  for (Parameter* p : entry.completes)
    if (completes) step.wgrad.ready(*p);
}

WgradQueue::Entry Embedding::gradients(Step& step, const Tensor& id_T, const Tensor& d_TH,
                                       const SegmentId& segment) {
  const Tensor d = drop_backward(step, d_TH, segment, dropout_, tensor_->first_row(step.seq.T()));
  const Tensor all_d = tensor_->gather(step, d);
  // The gradient has the type of the embeddings, and the table's value may be absent by now.
  const float factor = scale(d_TH.dtype());
  WgradQueue::Entry entry;
  entry.run = [this, &stream = step.compute, id_T, d, all_d, factor,
               position_T = tensor_->own_rows(step.seq.position_T)] {
    // If this entry runs before the head's, it makes the first contribution to a tied table.
    if (table_->consume_first_write()) ops::fill(stream, table_->grad, 0);
    ops::embedding_backward(stream, id_T, all_d, table_->grad, shard(), factor);
    if (positions_) ops::embedding_backward(stream, position_T, d, positions_->grad);
  };
  entry.completes = {table_};
  if (positions_) entry.completes.push_back(positions_);
  return entry;
}

}  // namespace mtrain::model
