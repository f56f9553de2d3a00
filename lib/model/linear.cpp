#include "model/linear.h"

#include "base/math.h"
#include "ops/ops.h"

namespace mtrain {

namespace {

using Role = Float8Scaling::Role;

// Of a rank's part, in which padding does not occur.
Shape part_of(Shape whole, const Cut& cut) {
  if (cut.dim == Cut::Dim::columns) whole[1] = exact_div(whole[1], int64_t(cut.ranks));
  if (cut.dim != Cut::Dim::rows) return whole;
  whole[0] = 0;
  for (const Cut::Section& s : cut.sections) whole[0] += s.rows_here(cut.ranks);
  return whole;
}

class PlainLinear : public Linear {
 public:
  PlainLinear(ParamStore& params, const LinearSpec& spec) : products_(params, spec) {}
  Tensor forward(Step& step, const Tensor& x_TI) override {
    return products_.forward(step, x_TI, true);
  }
  Tensor dgrad(Step& step, OutputGradient& dy) override { return products_.dgrad(step, dy); }
  void wgrad(Step& step, const Tensor& x_TI, const OutputGradient& dy) override {
    products_.wgrad(step, x_TI, dy);
  }
  ops::GeluResult forward_gelu(Step& step, const Tensor& x_TI) override {
    if (products_.in_8_bits()) return Linear::forward_gelu(step, x_TI);
    return products_.forward_gelu(step, x_TI);
  }
  ops::GeluGradients dgrad_gelu(Step& step, OutputGradient& dy, const Tensor& x_TI) override {
    if (products_.in_8_bits()) return Linear::dgrad_gelu(step, dy, x_TI);
    return products_.dgrad_gelu(step, dy.dy_TO, x_TI);
  }

 private:
  LinearProducts products_;
};

}  // namespace

LinearProducts::LinearProducts(ParamStore& params, const LinearSpec& s, const Cut& weight,
                               const Cut& bias)
    : names_(s.names), fp8_(s.fp8) {
  weight_ = params.add(s.unit, {.name = s.name + ".weight",
                                .shape = part_of({s.O, s.I}, weight),
                                .std = s.std,
                                .cut = weight});
  if (fp8_) number_ = fp8_->add(s.name, *weight_);
  if (s.bias)
    bias_ = params.add(s.unit, {.name = s.name + ".bias",
                                .shape = part_of({s.O}, bias),
                                .init = Init::zeros,
                                .decay = false,
                                .matmul_grad = false,
                                .cut = bias});
}

Tensor LinearProducts::forward(Step& step, const Tensor& x_TI, bool bias) const {
  Tensor y = Tensor::empty(step.compute, {x_TI.dim(0), O()}, x_TI.dtype());
  forward_into(step, x_TI, y, bias);
  return y;
}

void LinearProducts::forward_into(Step& step, const Tensor& x_TI, const Tensor& y_TO,
                                  bool bias) const {
  Stream& on = step.compute;
  const Tensor b = bias && bias_ ? bias_->value : Tensor();
  if (!fp8_)
    return ops::matmul_into(on, names_.fwd, x_TI, weight_->value, {.b = true}, y_TO, false, b);
  const auto x = quantized(on, Role::input, x_TI, false, step.training),
             w = fp8_->weight(on, number_, false, step.training);
  ops::matmul_float8_into(on, names_.fwd, x, w, y_TO, false, /*fast=*/true, b);
}

ops::GeluResult LinearProducts::forward_gelu(Step& step, const Tensor& x_TI) const {
  return ops::matmul_gelu(step.compute, names_.fwd, x_TI, weight_->value, {.b = true},
                          bias_ ? bias_->value : Tensor());
}

ops::GeluGradients LinearProducts::dgrad_gelu(Step& step, const Tensor& dy_TO,
                                              const Tensor& x_TI) const {
  return ops::matmul_dgelu(step.compute, names_.dgrad, dy_TO, weight_->value, {}, x_TI);
}

Tensor LinearProducts::dgrad(Step& step, OutputGradient& dy) const {
  Tensor dx = Tensor::empty(step.compute, {dy.dy_TO.dim(0), I()}, dy.dy_TO.dtype());
  if (fp8_)
    dgrad_float8(step.compute, shared_rows(step, dy), dx);
  else
    dgrad_into(step, dy.dy_TO, dx);
  return dx;
}

// What dgrad and wgrad share of a whole gradient in 8 bits: both layouts are made of one read. The
// gradient itself can go then, which has twice the bytes of the transpose that stays: also where
// wgrad waits (step.wgrad holds it), however long. Only a bias takes the gradient as it is, and a
// transpose would wait beside it: a wgrad that waits with a bias makes its own when its time has
// come. Of a dgrad in chunks (dgrad_into) nothing is shared.
ops::Float8Tensor LinearProducts::shared_rows(Step& step, OutputGradient& dy) const {
  Stream& on = step.compute;
  dy.scale = fp8_->scale(on, number_, Role::gradient, dy.dy_TO);
  if (bias_ && step.wgrad.holding())
    return fp8_->quantize(on, number_, Role::gradient, dy.dy_TO, dy.scale, false, true);
  const auto both = fp8_->quantize_both(on, number_, Role::gradient, dy.dy_TO, dy.scale, true);
  dy.dy_OT = both.transposed;
  if (!bias_) dy.dy_TO = {};
  return both.rows;
}

void LinearProducts::dgrad_into(Step& step, const Tensor& dy_TO, const Tensor& dx_TI) const {
  Stream& on = step.compute;
  if (!fp8_) return ops::matmul_into(on, names_.dgrad, dy_TO, weight_->value, {}, dx_TI);
  dgrad_float8(on, quantized(on, Role::gradient, dy_TO, false, true), dx_TI);
}

void LinearProducts::dgrad_float8(Stream& on, const ops::Float8Tensor& dy_TO,
                                  const Tensor& dx_TI) const {
  const auto w = fp8_->weight(on, number_, true, false);
  ops::matmul_float8_into(on, names_.dgrad, dy_TO, w, dx_TI, false, /*fast=*/false);
}

void LinearProducts::wgrad_into(Stream& on, const Tensor& x_TI, const OutputGradient& dy) const {
  const bool add = !weight_->take_fresh();
  const Tensor db_O = bias_ ? bias_->grad : Tensor();
  if (!fp8_)
    return ops::weight_gradient_into(on, names_.wgrad, dy.dy_TO, x_TI, weight_->grad, add, db_O);
  const auto scale = dy.scale.scale ? dy.scale : fp8_->scale(on, number_, Role::gradient, dy.dy_TO);
  const auto dy_OT =
      dy.dy_OT.data ? dy.dy_OT
                    : fp8_->quantize(on, number_, Role::gradient, dy.dy_TO, scale, true, false);
  const auto x = quantized(on, Role::input, x_TI, true, false);
  ops::matmul_float8_into(on, names_.wgrad, dy_OT, x, weight_->grad, add, /*fast=*/false);
  if (db_O) ops::column_sum(on, dy.dy_TO, db_O);
}

void LinearProducts::wgrad(Step& step, const Tensor& x_TI, const OutputGradient& dy) const {
  WgradQueue::Entry entry;
  entry.run = [this, &on = step.compute, x_TI, dy] { wgrad_into(on, x_TI, dy); };
  entry.completes = {weight_};
  if (bias_) entry.completes.push_back(bias_);
  step.wgrad.push(std::move(entry));
}

std::unique_ptr<Linear> plain_linear(ParamStore& params, const LinearSpec& spec) {
  return std::make_unique<PlainLinear>(params, spec);
}

}  // namespace mtrain
