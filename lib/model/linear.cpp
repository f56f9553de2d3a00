#include "model/linear.h"

#include <utility>

#include "base/math.h"
#include "ops/ops.h"

namespace mtrain::model {

namespace {

using Role = Float8Scaling::Role;

// The names of the GEMMs in profiles and traces.
constexpr GemmTable<const char*> kNames{{{
    {"matmul_qkv_fwd", "matmul_qkv_dgrad", "matmul_qkv_wgrad"},
    {"matmul_proj_fwd", "matmul_proj_dgrad", "matmul_proj_wgrad"},
    {"matmul_fc1_fwd", "matmul_fc1_dgrad", "matmul_fc1_wgrad"},
    {"matmul_fc2_fwd", "matmul_fc2_dgrad", "matmul_fc2_wgrad"},
}}};

// Returns the shape of a rank's part of a tensor without padding.
Shape part_of(Shape whole, const ShardSpec& shard) {
  if (shard.dim == ShardSpec::Dim::columns) whole[1] = exact_div(whole[1], int64_t(shard.ranks));
  if (shard.dim != ShardSpec::Dim::rows) return whole;
  whole[0] = 0;
  for (const ShardSpec::Section& s : shard.sections) whole[0] += s.rows_here(shard.ranks);
  return whole;
}

std::vector<int64_t> rows_of_sections(const LinearSpec& spec) {
  std::vector<int64_t> rows;
  for (const ShardSpec::Section& s : spec.sections) rows.push_back(s.units * s.width);
  return rows;
}

class PlainLinear : public Linear {
 public:
  PlainLinear(ParamStore& params, const LinearSpec& spec) : gemms_(params, spec) {}
  ops::Float8Write input_write(bool training) const override {
    return gemms_.input_write(training);
  }
  ops::Float8Write gradient_write() const override { return gemms_.gradient_write(); }
  Tensor forward(Step& step, const Tensor& x_TI, InputScale& scale) override {
    return gemms_.forward(step, x_TI, scale, true);
  }
  InputGradient dgrad(Step& step, WrittenGradient dy) override {
    return gemms_.dgrad(step, std::move(dy));
  }
  void wgrad(Step& step, const Tensor& x_TI, const InputScale& scale, OutputGradient dy) override {
    gemms_.wgrad(step, x_TI, scale, std::move(dy));
  }
  GeluOutput forward_gelu(Step& step, const Tensor& x_TI, InputScale& scale,
                          const Tensor& gelu_amax) override {
    if (gemms_.in_8_bits()) return Linear::forward_gelu(step, x_TI, scale, gelu_amax);
    MT_CHECK(!gelu_amax, "a GEMM with gelu finds no maximum");
    return gemms_.forward_gelu(step, x_TI);
  }
  GeluInputGradient dgrad_gelu(Step& step, WrittenGradient dy, const Tensor& u_TI,
                               const Tensor& du_amax) override {
    if (gemms_.in_8_bits()) return Linear::dgrad_gelu(step, std::move(dy), u_TI, du_amax);
    MT_CHECK(!du_amax, "a GEMM with gelu finds no maximum");
    return gemms_.dgrad_gelu(step, std::move(dy.dy_TO), u_TI);
  }

 private:
  LinearGemms gemms_;
};

}  // namespace

LinearGemms::LinearGemms(ParamStore& params, const LinearSpec& s, const ShardSpec& weight,
                         const ShardSpec& bias)
    : gemm_(s.gemm), fp8_(s.fp8) {
  weight_ = params.add(s.unit, {.name = s.name + ".weight",
                                .shape = part_of({s.O, s.I}, weight),
                                .std = s.std,
                                .stacked = rows_of_sections(s),
                                .shard = weight});
  if (fp8_) number_ = fp8_->add(s.name, *weight_);
  if (s.bias)
    bias_ = params.add(s.unit, {.name = s.name + ".bias",
                                .shape = part_of({s.O}, bias),
                                .init = Init::zeros,
                                .role = TensorRole::vector,
                                .matmul_grad = false,
                                .shard = bias});
}

const char* LinearGemms::name(Pass pass) const { return kNames.at(gemm_, pass); }

Tensor LinearGemms::forward(Step& step, const Tensor& x_TI, InputScale& scale, bool bias) const {
  const bool written = is_float8(x_TI.dtype());
  Tensor y = Tensor::empty(step.compute, {x_TI.dim(0), O()}, written ? float_type() : x_TI.dtype());
  if (!fp8_) {
    forward_into(step, x_TI, y, bias);
    return y;
  }
  if (!scale.scale.scale)
    scale.scale = scale_of(step.compute, Role::input, x_TI, std::exchange(scale.amax, {}));
  forward_float8(step, x_TI, scale.scale, y, bias);
  return y;
}

void LinearGemms::forward_into(Step& step, const Tensor& x_TI, const Tensor& y_TO,
                               bool bias) const {
  Stream& stream = step.compute;
  if (fp8_)
    return forward_float8(step, x_TI, fp8_->scale(stream, number_, Role::input, x_TI), y_TO, bias);
  ops::matmul_into(stream, name(Pass::fprop), x_TI, weight_->value, {.b = true}, y_TO, false,
                   bias && bias_ ? bias_->value : Tensor());
}

void LinearGemms::forward_float8(Step& step, const Tensor& x_TI, const ops::Float8Scale& scale,
                                 const Tensor& y_TO, bool bias) const {
  Stream& stream = step.compute;
  const auto x = is_float8(x_TI.dtype()) ? ops::Float8Tensor{x_TI, scale.inverse}
                                         : fp8_->quantize(stream, number_, Role::input, x_TI, scale,
                                                          false, step.training);
  const auto w = fp8_->weight(stream, number_, false, step.training);
  ops::matmul_float8_into(stream, name(Pass::fprop), x, w, y_TO, false, /*fast=*/true,
                          bias && bias_ ? bias_->value : Tensor());
}

GeluOutput LinearGemms::forward_gelu(Step& step, const Tensor& x_TI) const {
  const auto r = ops::matmul_gelu(step.compute, name(Pass::fprop), x_TI, weight_->value,
                                  {.b = true}, bias_ ? bias_->value : Tensor());
  return {r.x_MN, r.y_MN};
}

GeluInputGradient LinearGemms::dgrad_gelu(Step& step, Tensor dy_TO, const Tensor& u_TI) const {
  const auto r =
      ops::matmul_dgelu(step.compute, name(Pass::dgrad), dy_TO, weight_->value, {}, u_TI);
  return {r.dx_MN, r.y_MN, {std::move(dy_TO)}};
}

InputGradient LinearGemms::dgrad(Step& step, WrittenGradient dy) const {
  const Tensor dx = dy.dy_TO
                        ? Tensor::empty(step.compute, {dy.dy_TO.dim(0), I()}, dy.dy_TO.dtype())
                        : Tensor::empty(step.compute, {dy.quantized_TO.dim(0), I()}, float_type());
  if (!fp8_) {
    dgrad_into(step, dy.dy_TO, dx);
    return {dx, {std::move(dy.dy_TO)}};
  }
  QuantizedGradient quantized = quantize_gradient(step, std::move(dy));
  dgrad_float8(step.compute, quantized.rows_TO, dx);
  return {dx, std::move(quantized.for_wgrad)};
}

// One read of dy makes both quantized layouts: the rows for dgrad and the transpose for wgrad. If
// dy's kernel has written the rows, they are transposed. dy itself is then freed, and only the
// transpose, which has half its bytes, waits for wgrad. A bias needs dy itself, however. If such a
// wgrad is held, a transpose would have to wait beside dy; wgrad makes the transpose when it runs
// instead.
LinearGemms::QuantizedGradient LinearGemms::quantize_gradient(Step& step,
                                                              WrittenGradient dy) const {
  Stream& stream = step.compute;
  const bool dy_waits = bias_ && step.wgrad.holding();
  MT_CHECK(dy.dy_TO || !bias_, "the gradient of a bias needs dy itself");
  if (dy.quantized_TO) {
    const ops::Float8Tensor rows{dy.quantized_TO, dy.write.scale.inverse};
    const auto transposed = dy_waits ? ops::Float8Tensor{} : ops::transpose_float8(stream, rows);
    return {rows, {bias_ ? std::move(dy.dy_TO) : Tensor(), dy.write.scale, transposed}};
  }
  const bool recorded = dy.write.in_8_bits();
  const ops::Float8Scale scale =
      recorded ? dy.write.scale : scale_of(stream, Role::gradient, dy.dy_TO, dy.write.amax);
  if (dy_waits) {
    const auto rows =
        fp8_->quantize(stream, number_, Role::gradient, dy.dy_TO, scale, false, !recorded);
    return {rows, {std::move(dy.dy_TO), scale, {}}};
  }
  const auto both =
      fp8_->quantize_both(stream, number_, Role::gradient, dy.dy_TO, scale, !recorded);
  return {both.rows, {bias_ ? std::move(dy.dy_TO) : Tensor(), scale, both.transposed}};
}

void LinearGemms::dgrad_into(Step& step, const Tensor& dy_TO, const Tensor& dx_TI) const {
  Stream& stream = step.compute;
  if (!fp8_) return ops::matmul_into(stream, name(Pass::dgrad), dy_TO, weight_->value, {}, dx_TI);
  const auto scale = fp8_->scale(stream, number_, Role::gradient, dy_TO);
  const auto dy = fp8_->quantize(stream, number_, Role::gradient, dy_TO, scale, false, true);
  dgrad_float8(stream, dy, dx_TI);
}

void LinearGemms::dgrad_float8(Stream& stream, const ops::Float8Tensor& dy_TO,
                               const Tensor& dx_TI) const {
  const auto w = fp8_->weight(stream, number_, true, false);
  ops::matmul_float8_into(stream, name(Pass::dgrad), dy_TO, w, dx_TI, false, /*fast=*/false);
}

void LinearGemms::wgrad_now(Stream& stream, const Tensor& x_TI, const InputScale& input,
                            const OutputGradient& dy) const {
  const bool add = !weight_->consume_first_write();
  const Tensor db_O = bias_ ? bias_->grad : Tensor();
  if (!fp8_)
    return ops::weight_gradient_into(stream, name(Pass::wgrad), dy.dy_TO, x_TI, weight_->grad, add,
                                     db_O);
  const auto scale =
      dy.scale.scale ? dy.scale : fp8_->scale(stream, number_, Role::gradient, dy.dy_TO);
  const auto dy_OT =
      dy.dy_OT.data ? dy.dy_OT
                    : fp8_->quantize(stream, number_, Role::gradient, dy.dy_TO, scale, true, false);
  const auto x_scale =
      input.scale.scale ? input.scale : fp8_->scale(stream, number_, Role::input, x_TI);
  const auto x = is_float8(x_TI.dtype())
                     ? ops::transpose_float8(stream, {x_TI, x_scale.inverse})
                     : fp8_->quantize(stream, number_, Role::input, x_TI, x_scale, true, false);
  ops::matmul_float8_into(stream, name(Pass::wgrad), dy_OT, x, weight_->grad, add, /*fast=*/false);
  if (db_O) ops::column_sum(stream, dy.dy_TO, db_O);
}

void LinearGemms::wgrad(Step& step, const Tensor& x_TI, const InputScale& scale,
                        OutputGradient dy) const {
  WgradQueue::Entry entry;
  entry.run = [this, &stream = step.compute, x_TI, scale, dy = std::move(dy)] {
    wgrad_now(stream, x_TI, scale, dy);
  };
  entry.completes = {weight_};
  if (bias_) entry.completes.push_back(bias_);
  step.wgrad.push(std::move(entry));
}

std::unique_ptr<Linear> plain_linear(ParamStore& params, const LinearSpec& spec) {
  return std::make_unique<PlainLinear>(params, spec);
}

}  // namespace mtrain::model
