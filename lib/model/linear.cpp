#include "model/linear.h"

#include <utility>

#include "base/math.h"
#include "ops/matmul.h"
#include "ops/operand.h"
#include "ops/reduce.h"

namespace mtrain::model {

namespace {

using Role = Quantizer::Role;

// The names of the GEMMs in profiles and traces.
constexpr GemmTable<const char*> kNames{{{
    {"matmul_qkv_fwd", "matmul_qkv_dgrad", "matmul_qkv_wgrad"},
    {"matmul_proj_fwd", "matmul_proj_dgrad", "matmul_proj_wgrad"},
    {"matmul_fc1_fwd", "matmul_fc1_dgrad", "matmul_fc1_wgrad"},
    {"matmul_fc2_fwd", "matmul_fc2_dgrad", "matmul_fc2_wgrad"},
}}};

class PlainLinear : public Linear {
 public:
  PlainLinear(ParamStore& params, const LinearSpec& spec, const ShardSpec& weight)
      : gemms_(params, spec, weight, weight) {}
  ops::Destination input(bool training) const override { return gemms_.input(training); }
  ops::Destination gradient() const override { return gemms_.gradient(); }
  Tensor forward(Step& step, LinearOperand& x_TI) override {
    return gemms_.forward(step, x_TI, true);
  }
  InputGradient dgrad(Step& step, LinearOperand dy_TO) override {
    return gemms_.dgrad(step, std::move(dy_TO));
  }
  void wgrad(Step& step, LinearOperand x_TI, LinearOperand dy_TO) override {
    gemms_.wgrad(step, std::move(x_TI), std::move(dy_TO));
  }
  GeluOutput forward_gelu(Step& step, LinearOperand& x_TI, const ops::Destination& to) override {
    if (gemms_.quantizes()) return Linear::forward_gelu(step, x_TI, to);
    return gemms_.forward_gelu(step, x_TI.value.plain);
  }
  GeluInputGradient dgrad_gelu(Step& step, LinearOperand dy_TO, const Tensor& u_TI,
                               const ops::Destination& to) override {
    if (gemms_.quantizes()) return Linear::dgrad_gelu(step, std::move(dy_TO), u_TI, to);
    return gemms_.dgrad_gelu(step, std::move(dy_TO.value.plain), u_TI);
  }

 private:
  LinearGemms gemms_;
};

}  // namespace

LinearSpec::LinearSpec(UnitId u, const std::vector<spec::TensorSpec>& tensors,
                       const std::string& linear, LayerGemm g, std::shared_ptr<Quantizer> q)
    : unit(u),
      name(linear),
      weight(tensor_of(tensors, name + ".weight")),
      gemm(g),
      quantizer(std::move(q)) {
  if (const spec::TensorSpec* b = find_tensor(tensors, name + ".bias")) bias = *b;
  using spec::Rows;
  for (const Rows rows : {Rows::all, Rows::query, Rows::key, Rows::value, Rows::gate, Rows::up})
    if (const spec::TensorSpec* a = find_tensor(tensors, name + adapter_prefix(rows) + ".a"))
      adapters.push_back({*a, tensor_of(tensors, name + adapter_prefix(rows) + ".b"), rows});
}

LinearGemms::LinearGemms(ParamStore& params, const LinearSpec& s, const ShardSpec& weight,
                         const ShardSpec& bias)
    : gemm_(s.gemm) {
  ParamSpec part = part_of(s.weight, weight);
  part.quantized = s.quantizer && s.quantizer->one_form_of_weights();
  weight_ = params.add(s.unit, std::move(part));
  quantizer_.emplace(s.quantizer, s.name, *weight_);
  if (s.bias) bias_ = params.add(s.unit, part_of(*s.bias, bias));
}

const char* LinearGemms::name(Pass pass) const { return kNames.at(gemm_, pass); }

ops::Destination LinearGemms::gradient() const {
  ops::Destination to = quantizer_->destination(Role::gradient, true);
  to.needs_plain = bool(bias_);
  return to;
}

Tensor LinearGemms::result(Stream& stream, const LinearOperand& x, int64_t columns) const {
  const DType type = x.value.plain ? x.value.plain.dtype() : weight_->compute;
  return Tensor::empty(stream, {x.value.rows(), columns}, type);
}

Tensor LinearGemms::forward(Step& step, LinearOperand& x_TI, bool bias) const {
  Tensor y_TO = result(step.compute, x_TI, O());
  multiply(step, x_TI, y_TO, bias);
  return y_TO;
}

void LinearGemms::multiply(Step& step, LinearOperand& x_TI, const Tensor& y_TO, bool bias) const {
  const ops::Operand x = quantizer_->input(step, x_TI),
                     w = quantizer_->weight(step.compute, false, step.training);
  ops::matmul_into(step.compute, name(Pass::fprop), x, w, {.b = true}, y_TO, false,
                   bias && bias_ ? bias_->value : Tensor(), /*fast=*/true);
}

GeluOutput LinearGemms::forward_gelu(Step& step, const Tensor& x_TI) const {
  const auto r = ops::matmul_gelu(step.compute, name(Pass::fprop), x_TI, weight_->value,
                                  {.b = true}, bias_ ? bias_->value : Tensor());
  return {r.x_MN, r.y_MN};
}

GeluInputGradient LinearGemms::dgrad_gelu(Step& step, Tensor dy_TO, const Tensor& u_TI) const {
  const auto r =
      ops::matmul_dgelu(step.compute, name(Pass::dgrad), dy_TO, weight_->value, {}, u_TI);
  return {r.dx_MN, r.y_MN, std::move(dy_TO)};
}

InputGradient LinearGemms::dgrad(Step& step, LinearOperand dy_TO) const {
  const Tensor dx_TI = result(step.compute, dy_TO, I());
  const ops::Operand dy = quantizer_->gradient(step, dy_TO, bool(bias_)),
                     w = quantizer_->weight(step.compute, true, false);
  ops::matmul_into(step.compute, name(Pass::dgrad), dy, w, {}, dx_TI);
  return {dx_TI, std::move(dy_TO)};
}

void LinearGemms::dgrad_into(Step& step, LinearOperand dy_TO, const Tensor& dx_TI) const {
  const ops::Operand dy = quantizer_->rows(step.compute, Role::gradient, dy_TO, true),
                     w = quantizer_->weight(step.compute, true, false);
  ops::matmul_into(step.compute, name(Pass::dgrad), dy, w, {}, dx_TI);
}

void LinearGemms::wgrad_now(Stream& stream, LinearOperand x_TI, LinearOperand dy_TO) const {
  const bool add = !weight_->consume_first_write();
  const Tensor db_O = bias_ ? bias_->grad : Tensor();
  const ops::Operand dy = quantizer_->columns(stream, Role::gradient, dy_TO),
                     x = quantizer_->columns(stream, Role::input, x_TI);
  ops::weight_gradient_into(stream, name(Pass::wgrad), dy, x, weight_->grad, add,
                            dy.quantized() ? Tensor() : db_O);
  if (db_O && dy.quantized()) ops::column_sum(stream, dy_TO.value.plain, db_O);
}

void LinearGemms::wgrad(Step& step, LinearOperand x_TI, LinearOperand dy_TO) const {
  WgradQueue::Entry entry;
  entry.run = [this, &stream = step.compute, x = std::move(x_TI), dy = std::move(dy_TO)] {
    wgrad_now(stream, x, dy);
  };
  entry.completes = {weight_};
  if (bias_) entry.completes.push_back(bias_);
  step.wgrad.push(std::move(entry));
}

std::unique_ptr<Linear> plain_linear(ParamStore& params, const LinearSpec& spec,
                                     const ShardSpec& weight) {
  return std::make_unique<PlainLinear>(params, spec, weight);
}

}  // namespace mtrain::model
