#include "model/linear.h"

#include "ops/ops.h"

namespace mtrain {

namespace {

class PlainLinear : public Linear {
 public:
  PlainLinear(ParamStore& params, const LinearSpec& s) : names_(s.names) {
    weight_ = params.add(s.unit, {.name = s.name + ".weight", .shape = {s.O, s.I}, .std = s.std});
    if (s.bias)
      bias_ = params.add(s.unit, {.name = s.name + ".bias",
                                  .shape = {s.O},
                                  .init = Init::zeros,
                                  .decay = false,
                                  .matmul_grad = false});
  }

  Tensor forward(Step& step, const Tensor& x_TI) override {
    return ops::matmul(step.compute, names_.fwd, x_TI, weight_->value, {.b = true}, x_TI.dtype(),
                       bias_ ? bias_->value : Tensor());
  }

  Tensor dgrad(Step& step, const Tensor& dy_TO) override {
    return ops::matmul(step.compute, names_.dgrad, dy_TO, weight_->value, {}, dy_TO.dtype());
  }

  void wgrad(Step& step, const Tensor& x_TI, const Tensor& dy_TO) override {
    WgradQueue::Entry entry;
    entry.run = [this, &on = step.compute, x_TI, dy_TO] {
      ops::matmul_into(on, names_.wgrad, dy_TO, x_TI, {.a = true}, weight_->grad,
                       !weight_->take_fresh());
      if (bias_) ops::column_sum(on, dy_TO, bias_->grad);
    };
    entry.completes = {weight_};
    if (bias_) entry.completes.push_back(bias_);
    step.wgrad.push(std::move(entry));
  }

 private:
  LinearNames names_;
  Parameter *weight_, *bias_ = nullptr;
};

}  // namespace

std::unique_ptr<Linear> plain_linear(ParamStore& params, const LinearSpec& spec) {
  return std::make_unique<PlainLinear>(params, spec);
}

}  // namespace mtrain
