#include "model/head.h"

#include <algorithm>
#include <utility>

#include "base/math.h"
#include "device/device.h"
#include "model/embedding.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/reduce.h"

namespace mtrain::model {

namespace {
constexpr const char* kScope = "output";

struct HeadActivations {
  ops::NormResult norm;
  Tensor dy_TH;  // gradient of the norm's output
};

Tensor picked_rows(Stream& stream, const Tensor& x_TH, const std::vector<int64_t>& rows) {
  const int64_t H = x_TH.dim(1);
  Tensor picked = Tensor::empty(stream, {int64_t(rows.size()), H}, x_TH.dtype());
  std::vector<ops::CopyBlock> blocks;
  for (size_t i = 0; i < rows.size(); ++i)
    blocks.push_back({.from_row = rows[i],
                      .from_column = 0,
                      .to_row = int64_t(i),
                      .to_column = 0,
                      .rows = 1,
                      .columns = H});
  ops::copy_blocks(stream, x_TH, picked, std::move(blocks));
  return picked;
}
}  // namespace

Head::Head(ParamStore& params, const spec::ModelSpec& model, const ModelImpls& impls,
           const Parts& parts, bool own_table)
    : vocab_(model.vocab),
      logit_scale_(model.logit_scale),
      logit_cap_(float(model.logit_cap)),
      tensor_(impls.tensor),
      logits_rows_(impls.logits_rows),
      logits_dtype_(impls.logits_dtype) {
  if (parts.norm)
    norm_.emplace(params, UnitKind::output, spec::output_tensors(model), "final_norm", model.norm,
                  *tensor_);
  if (!parts.output) return;
  completes_ = !model.tied_embeddings || (own_table && model.mtp.depths == 0);
  if (model.tied_embeddings) {
    output_ = own_table ? add_table(params, model, impls, true) : token_table(params);
    MT_CHECK(output_, "embeddings are tied, but this rank has no token table");
    return;
  }
  output_ =
      params.add(UnitKind::output,
                 vocabulary_part(tensor_of(spec::output_tensors(model), "output.weight"), impls));
  output_->unit->in_fp32 = impls.head_in_fp32;
}

Tensor Head::in_weights_type(Stream& stream, const Tensor& y_TH) const {
  return ops::in_dtype(stream, y_TH, output_->value.dtype());
}

void Head::token_losses(Step& step, const Tensor& logits_TV, const Tensor& label_T,
                        const Tensor& loss_T, const LossRequest& request) {
  if (!logits_dtype_) return cross_entropy(step, logits_TV, label_T, loss_T, request);
  const Tensor rounded_TV = ops::in_dtype(step.compute, logits_TV, *logits_dtype_);
  cross_entropy(step, rounded_TV, label_T, loss_T, request);
  if (step.training) ops::cast(step.compute, rounded_TV, logits_TV);
}

void Head::cross_entropy(Step& step, const Tensor& logits_TV, const Tensor& label_T,
                         const Tensor& loss_T, const LossRequest& request) {
  Stream& stream = step.compute;
  if (tensor_->size() == 1)
    return ops::cross_entropy(stream, logits_TV, label_T, loss_T, vocab_, request.grad_scale,
                              step.training, request.grad_scale_1, logit_cap_);
  const int64_t first = std::min(tensor_->rank() * output_->shape[0], vocab_);
  const ops::VocabularyColumns here{first, output_->real_rows(), vocab_};
  const Tensor sums_T3 = ops::cross_entropy_sums(stream, logits_TV, label_T, here, logit_cap_);
  ops::cross_entropy_from_sums(stream, logits_TV, label_T, tensor_->gather_sums(step, sums_T3),
                               loss_T, here, request.grad_scale, step.training,
                               request.grad_scale_1, logit_cap_);
}

// Logits are linear in the norm's output, which is far smaller.
void Head::scale_logits(Stream& stream, const Tensor& y_TH) const {
  if (logit_scale_ != 1) ops::scale(stream, y_TH, logit_scale_);
}

Tensor Head::loss(Step& step, const Hidden& h, const LossRequest& request) {
  const Device::Scope scope(step.compute.device(), kScope);
  HeadActivations a;
  a.norm = norm_->forward(step, h);
  Tensor y_TH = std::exchange(a.norm.y_TH, {}).plain;
  const Tensor further_TH = request.depths.empty() ? Tensor() : y_TH;
  a.dy_TH = output_loss(step, std::move(y_TH), request, request.depths.empty());
  if (step.training) step.stash->push(std::move(a));
  return further_TH;
}

Tensor Head::normalize(Step& step, const Hidden& h) {
  const Device::Scope scope(step.compute.device(), kScope);
  HeadActivations a;
  a.norm = norm_->forward(step, h);
  Tensor y_TH = std::exchange(a.norm.y_TH, {}).plain;
  if (step.training) step.stash->push(std::move(a));
  return y_TH;
}

void Head::losses_of_rows(Step& step, const Tensor& x_TH, const std::vector<LossRequest>& depths) {
  const Device::Scope scope(step.compute.device(), kScope);
  Stream& stream = step.compute;
  const int64_t T = exact_div(x_TH.dim(0), int64_t(depths.size()));
  const Tensor dx_TH = step.training ? Tensor::empty(stream, x_TH.shape(), x_TH.dtype()) : Tensor();
  for (size_t k = 0; k < depths.size(); ++k) {
    const int64_t first = int64_t(k) * T;
    const Tensor dy_TH =
        output_loss(step, x_TH.rows(first, first + T), depths[k], k + 1 == depths.size());
    if (dy_TH) ops::cast(stream, dy_TH, dx_TH.rows(first, first + T));
  }
  if (step.training) step.stash->push(dx_TH);
}

Tensor Head::rows_backward(Step& step) { return step.stash->pop<Tensor>(); }

Tensor Head::output_loss(Step& step, Tensor rows_TH, const LossRequest& request, bool last) {
  Stream& stream = step.compute;
  const DType activations = rows_TH.dtype();
  const Tensor y_TH = in_weights_type(stream, tensor_->gather(step, rows_TH));
  // The multiplication is in place, and depths read the rows that are not multiplied.
  const bool shared = rows_TH.data() == y_TH.data() && logit_scale_ != 1 && !last;
  rows_TH = {};
  const Tensor scaled_TH = shared ? Tensor::empty(stream, y_TH.shape(), y_TH.dtype()) : y_TH;
  if (shared) ops::cast(stream, y_TH, scaled_TH);
  scale_logits(stream, scaled_TH);
  const int64_t T = y_TH.dim(0), rows = logits_rows_ ? logits_rows_ : T;
  Tensor dy_TH;
  if (step.training) dy_TH = Tensor::empty(stream, y_TH.shape(), y_TH.dtype());
  const Tensor loss_T = Tensor::empty(stream, {T}, DType::f32);
  for (int64_t first = 0; first < T; first += rows) {
    const int64_t end = std::min(T, first + rows);
    const Tensor y = scaled_TH.rows(first, end);
    const Tensor logits =
        ops::matmul(stream, "matmul_output_fwd", y, output_->value, {.b = true}, y.dtype());
    token_losses(step, logits, request.label_T.rows(first, end), loss_T.rows(first, end), request);
    if (!step.training) continue;
    ops::matmul_into(stream, "matmul_output_dgrad", logits, output_->value, {},
                     dy_TH.rows(first, end));
    if (output_->frozen) continue;
    WgradQueue::Entry entry;
    entry.run = [this, &stream, y, logits] {
      ops::matmul_into(stream, "matmul_output_wgrad", logits, y, {.a = true}, output_->grad,
                       !output_->consume_first_write());
    };
    if (end == T && completes_ && last) entry.completes = {output_};
    step.wgrad.push(std::move(entry));
  }
  ops::sum(stream, loss_T, request.total);
  if (!step.training) return {};
  scale_logits(stream, dy_TH);
  return tensor_->reduce(step, ops::in_dtype(stream, dy_TH, activations));
}

ops::Written Head::backward(Step& step, const ops::Destination& to, const Tensor& dy_TH) {
  const Device::Scope scope(step.compute.device(), kScope);
  const auto a = step.stash->pop<HeadActivations>();
  if (dy_TH && a.dy_TH) ops::add_into(step.compute, dy_TH, a.dy_TH);
  return norm_->backward(step, a.norm, a.dy_TH ? a.dy_TH : dy_TH, {}, to);
}

Tensor Head::logits(Step& step, const Hidden& h, const std::vector<int64_t>& rows) {
  const Device::Scope scope(step.compute.device(), kScope);
  Stream& stream = step.compute;
  Tensor y_TH = tensor_->gather(step, norm_->forward(step, h).y_TH.plain);
  if (!rows.empty()) y_TH = picked_rows(stream, y_TH, rows);
  y_TH = in_weights_type(stream, y_TH);
  scale_logits(stream, y_TH);
  const Tensor own_TV =
      ops::matmul(stream, "matmul_output_fwd", y_TH, output_->value, {.b = true}, DType::f32);
  if (logit_cap_ > 0) ops::soft_cap(stream, own_TV, logit_cap_);
  if (tensor_->size() == 1) return own_TV;
  const int64_t T = own_TV.dim(0), P = tensor_->size(), columns = own_TV.dim(1);
  const Tensor all_PTV = tensor_->all_ranks(own_TV.view({own_TV.count()}));
  const Tensor logits_TV = Tensor::empty(stream, {T, P * columns}, DType::f32);
  std::vector<ops::CopyBlock> blocks;
  for (int64_t p = 0; p < P; ++p)
    blocks.push_back({.from_row = p * T,
                      .from_column = 0,
                      .to_row = 0,
                      .to_column = p * columns,
                      .rows = T,
                      .columns = columns});
  ops::copy_blocks(stream, all_PTV.view({P * T, columns}), logits_TV, std::move(blocks));
  return logits_TV;
}

}  // namespace mtrain::model
