#include "model/head.h"

#include <algorithm>

#include "base/math.h"
#include "device/device.h"

namespace mtrain {

namespace {
constexpr const char* kName = "output";

// Tokens whose logits exist at once, of T.
int64_t logits_chunk_rows(const GptConfig& c, int64_t T) {
  return ceil_div(T, ceil_div(T * c.padded_vocab * 4, c.logits_bytes));
}

struct HeadActivations {
  ops::NormResult norm;
  Tensor dy_TH;  // gradient of the norm's output
};
}  // namespace

Head::Head(ParamStore& params, const GptConfig& c, Parameter* tied)
    : c_(c), norm_(params, kName, "final_norm", c), tied_(tied) {
  output_ = tied ? tied
                 : params.add(kName, {.name = "output.weight",
                                      .shape = {c.padded_vocab, c.hidden},
                                      .std = c.init_std,
                                      .rows = c.vocab});
}

void Head::loss(Step& step, const Hidden& h, const LossRequest& request) {
  const Device::Scope scope(step.compute.device(), kName);
  Stream& on = step.compute;
  HeadActivations a;
  a.norm = norm_.forward(step, h);
  const int64_t T = a.norm.y_TH.dim(0), rows = logits_chunk_rows(c_, T);
  if (step.training) a.dy_TH = Tensor::empty(on, a.norm.y_TH.shape(), a.norm.y_TH.dtype());
  const Tensor loss_T = Tensor::empty(on, {T}, DType::f32);
  for (int64_t first = 0; first < T; first += rows) {
    const int64_t end = std::min(T, first + rows);
    const Tensor y = a.norm.y_TH.rows(first, end);
    const Tensor logits =
        ops::matmul(on, "matmul_output_fwd", y, output_->value, {.b = true}, y.dtype());
    ops::cross_entropy(on, logits, request.label_T.rows(first, end), loss_T.rows(first, end),
                       c_.vocab, request.grad_scale, step.training);
    if (!step.training) continue;
    ops::matmul_into(on, "matmul_output_dgrad", logits, output_->value, {},
                     a.dy_TH.rows(first, end));
    WgradQueue::Entry entry;
    entry.run = [this, &on, y, logits] {
      ops::matmul_into(on, "matmul_output_wgrad", logits, y, {.a = true}, output_->grad,
                       !output_->take_fresh());
    };
    if (end == T && !tied_)
      entry.completes = {output_};  // a tied table still gets the embedding's part
    step.wgrad.push(std::move(entry));
  }
  ops::sum(on, loss_T, request.total);
  if (!step.training) return;
  a.norm.y_TH = {};  // not needed any more
  step.stash.push(std::move(a));
}

Tensor Head::backward(Step& step) {
  const Device::Scope scope(step.compute.device(), kName);
  const auto a = step.stash.pop<HeadActivations>();
  return norm_.backward(step, a.norm, a.dy_TH, {});
}

Tensor Head::logits(Step& step, const Hidden& h) {
  const Device::Scope scope(step.compute.device(), kName);
  return ops::matmul(step.compute, "matmul_output_fwd", norm_.forward(step, h).y_TH, output_->value,
                     {.b = true}, DType::f32);
}

}  // namespace mtrain
