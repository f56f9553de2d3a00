#include "model/embedding.h"

#include "device/device.h"

namespace mtrain {

namespace {
constexpr const char* kName = "embedding";
}

Embedding::Embedding(ParamStore& params, const GptConfig& c) : c_(c) {
  // A tied table's gradient starts with the output layer's matmul; an untied one is only scattered
  // into.
  table_ = params.add(kName, {.name = "embedding.weight",
                              .shape = {c.padded_vocab, c.hidden},
                              .std = c.init_std,
                              .rows = c.vocab,
                              .matmul_grad = c.tied_embeddings});
  if (!c.rotary)
    positions_ = params.add(kName, {.name = "position_embedding.weight",
                                    .shape = {c.max_positions, c.hidden},
                                    .std = c.init_std,
                                    .matmul_grad = false});
}

Tensor Embedding::forward(Step& step, const Tensor& id_T) {
  const Device::Scope scope(step.compute.device(), kName);
  Tensor x_TH = ops::embedding(step.compute, id_T, table_->value, step.seq.position_T,
                               positions_ ? positions_->value : Tensor());
  drop(step, x_TH, kName, c_.embedding_dropout);
  return x_TH;
}

void Embedding::backward(Step& step, const Tensor& id_T, const Tensor& d_TH) {
  const Device::Scope scope(step.compute.device(), kName);
  const Tensor d = drop_backward(step, d_TH, kName, c_.embedding_dropout);
  WgradQueue::Entry entry;
  entry.run = [this, &on = step.compute, id_T, d, position_T = step.seq.position_T] {
    // A tied table's first contribution, where this entry is drained before the head's: those then
    // add.
    if (table_->take_fresh()) ops::fill(on, table_->grad, 0);
    ops::embedding_backward(on, id_T, d, table_->grad);
    if (positions_) ops::embedding_backward(on, position_T, d, positions_->grad);
  };
  entry.completes = {table_};
  if (positions_) entry.completes.push_back(positions_);
  step.wgrad.push(std::move(entry));
}

}  // namespace mtrain
