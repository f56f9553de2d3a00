#include "ops/experts.h"

#include "base/math.h"
#include "kernels/grouped_matmul.h"
#include "kernels/weighted_swiglu.h"
#include "ops/blocks.h"
#include "ops/elementwise.h"
#include "ops/enqueue.h"

MT_KERNEL(RouteTokens)
MT_KERNEL(RouterSums)
MT_KERNEL(RouterLosses)
MT_KERNEL(RouteTokensGrad)
MT_KERNEL(UpdateRouterBias)
MT_KERNEL(DropChoices)
MT_KERNEL(GroupedMatmul)
MT_KERNEL(GroupedWeightGrad)
MT_KERNEL(WeightedSwigluForward)
MT_KERNEL(WeightedSwigluBackward)

namespace mtrain::ops {

namespace {
// Returns memory for a result: `into`, if it is present.
Tensor result(Stream& stream, const char* op, const Tensor& into, const Shape& shape, DType dtype) {
  if (!into) return Tensor::empty(stream, shape, dtype);
  MT_CHECK(into.shape() == shape && into.dtype() == dtype,
           "{}: into is {} of {}, expected {} of {}", op, into.shape().str(),
           dtype_name(into.dtype()), shape.str(), dtype_name(dtype));
  return into;
}
}  // namespace

Routing route_tokens(Stream& stream, const Tensor& logits_TE, int64_t K, const RouterForm& form,
                     const Tensor& bias_E, const Tensor& valid_T, const Tensor& choice_TK) {
  MT_FLOAT("route_tokens", logits_TE);
  const int64_t T = logits_TE.dim(0), E = logits_TE.dim(1);
  MT_CHECK(K >= 1 && K <= E, "route_tokens: {} of {} experts", K, E);
  if (bias_E) {
    MT_SHAPE("route_tokens", bias_E, {E});
    MT_DTYPE("route_tokens", bias_E, DType::f32);
  }
  if (valid_T) {
    MT_SHAPE("route_tokens", valid_T, {T});
    MT_DTYPE("route_tokens", valid_T, DType::i32);
  }
  if (choice_TK) {
    MT_SHAPE("route_tokens", choice_TK, {T, K});
    MT_DTYPE("route_tokens", choice_TK, DType::i32);
  }
  Routing r{Tensor::empty(stream, {T, K}, DType::i32), Tensor::empty(stream, {T, K}, DType::f32),
            Tensor::empty(stream, {T}, DType::f32), Tensor::empty(stream, {T}, DType::f32)};
  enqueue(stream, "route_tokens",
          kernels::RouteTokens{.logits_TE = logits_TE,
                               .bias_E = bias_E,
                               .valid_T = valid_T,
                               .choice_TK = choice_TK,
                               .expert_TK = r.expert_TK,
                               .weight_TK = r.weight_TK,
                               .log_sum_T = r.log_sum_T,
                               .score_sum_T = r.score_sum_T,
                               .T = T,
                               .E = E,
                               .K = K,
                               .form = form});
  return r;
}

namespace {
// Tokens belong to B samples in turn, unless sample_T gives the sample of each.
void check_samples(const char* op, int64_t T, int64_t B, const Tensor& sample_T) {
  MT_CHECK(B > 0 && (sample_T || T % B == 0), "{}: {} tokens of {} samples", op, T, B);
  if (!sample_T) return;
  MT_CHECK(sample_T.count() == T && sample_T.dtype() == DType::i32,
           "{}: the samples of {} tokens are {} {}", op, T, sample_T.count(),
           dtype_name(sample_T.dtype()));
}
}  // namespace

Tensor router_sums(Stream& stream, const Tensor& logits_TE, const Routing& r, int64_t B,
                   RouterScore score, const Tensor& sample_T) {
  const int64_t T = logits_TE.dim(0), E = logits_TE.dim(1), K = r.expert_TK.dim(1);
  check_samples("router_sums", T, B, sample_T);
  Tensor sums = Tensor::empty(stream, {B, kernels::router_sums(E)}, DType::f32);
  enqueue(stream, "router_sums",
          kernels::RouterSums{.logits_TE = logits_TE,
                              .expert_TK = r.expert_TK,
                              .log_sum_T = r.log_sum_T,
                              .score_sum_T = r.score_sum_T,
                              .sample_T = sample_T,
                              .sums_BS = sums,
                              .T = T,
                              .E = E,
                              .K = K,
                              .B = B,
                              .score = score});
  return sums;
}

Tensor router_losses(Stream& stream, const Tensor& sums_BS, int64_t E, int64_t K,
                     const RouterLossCoeffs& coeffs, float grad_scale, const Tensor& loss_2,
                     const Tensor& fraction_E, const Tensor& grad_scale_1) {
  const int64_t B = sums_BS.dim(0);
  MT_SHAPE("router_losses", sums_BS, {B, kernels::router_sums(E)});
  MT_SHAPE("router_losses", loss_2, {2});
  MT_DTYPE("router_losses", loss_2, DType::f64);
  if (fraction_E) {
    MT_SHAPE("router_losses", fraction_E, {E});
    MT_DTYPE("router_losses", fraction_E, DType::f32);
  }
  if (grad_scale_1) MT_DTYPE("router_losses", grad_scale_1, DType::f32);
  // The first batch has no previous loads; its own loads replace them.
  const bool another = bool(fraction_E);
  Tensor grad = Tensor::empty(stream, {B, E + 1}, DType::f32);
  enqueue(stream, "router_losses",
          kernels::RouterLosses{.sums_BS = sums_BS,
                                .fraction_E = fraction_E,
                                .batch_coeff = coeffs.batch + (another ? 0 : coeffs.global),
                                .sample_coeff = coeffs.sample,
                                .global_coeff = another ? coeffs.global : 0,
                                .z_coeff = coeffs.z,
                                .grad_scale = grad_scale,
                                .scale_in_memory = grad_scale_1,
                                .loss_2 = loss_2,
                                .grad_BG = grad,
                                .B = B,
                                .E = E,
                                .K = K});
  return grad;
}

Tensor route_tokens_grad(Stream& stream, const Tensor& logits_TE, const Routing& r,
                         const Tensor& dweight_TK, const RouterForm& form, const Tensor& grad_BG,
                         const Tensor& sample_T) {
  const int64_t T = logits_TE.dim(0), E = logits_TE.dim(1), K = r.expert_TK.dim(1);
  MT_SHAPE("route_tokens_grad", dweight_TK, {T, K});
  MT_DTYPE("route_tokens_grad", dweight_TK, DType::f32);
  const int64_t B = grad_BG ? grad_BG.dim(0) : 1;
  if (grad_BG) MT_SHAPE("route_tokens_grad", grad_BG, {B, E + 1});
  const Tensor samples = grad_BG ? sample_T : Tensor();
  check_samples("route_tokens_grad", T, B, samples);
  Tensor d = Tensor::empty(stream, logits_TE.shape(), logits_TE.dtype());
  enqueue(stream, "route_tokens_grad",
          kernels::RouteTokensGrad{.logits_TE = logits_TE,
                                   .expert_TK = r.expert_TK,
                                   .log_sum_T = r.log_sum_T,
                                   .score_sum_T = r.score_sum_T,
                                   .dweight_TK = dweight_TK,
                                   .grad_BG = grad_BG,
                                   .sample_T = samples,
                                   .dlogits_TE = d,
                                   .T = T,
                                   .E = E,
                                   .K = K,
                                   .B = B,
                                   .form = form});
  return d;
}

void update_router_bias(Stream& stream, const Tensor& count_E, const Tensor& bias_E, float rate) {
  const int64_t E = bias_E.dim(0);
  MT_SHAPE("update_router_bias", count_E, {E});
  MT_DTYPE("update_router_bias", count_E, DType::f32);
  MT_DTYPE("update_router_bias", bias_E, DType::f32);
  enqueue(stream, "update_router_bias",
          kernels::UpdateRouterBias{.count_E = count_E, .bias_E = bias_E, .E = E, .rate = rate});
}

Tensor drop_choices(Stream& stream, const Routing& r, int64_t capacity, bool lightest,
                    const Tensor& dropped_E) {
  const int64_t T = r.expert_TK.dim(0), K = r.expert_TK.dim(1);
  MT_DTYPE("drop_choices", dropped_E, DType::f32);
  const Tensor kept_TK = Tensor::empty(stream, {T, K}, DType::i32);
  copy_blocks(stream, r.expert_TK, kept_TK, {{0, 0, 0, 0, T, K}});
  const Tensor weight_TK = lightest ? r.weight_TK : Tensor();
  enqueue(stream, "drop_choices",
          kernels::DropChoices{.expert_TK = kept_TK,
                               .weight_TK = weight_TK,
                               .dropped_E = dropped_E,
                               .T = T,
                               .K = K,
                               .E = dropped_E.dim(0),
                               .capacity = capacity});
  return kept_TK;
}

namespace {
void check_grouped_operands(const char* op, const Operand& a, const Operand& b, bool fits) {
  if (!a.quantized() && !b.quantized()) {
    MT_CHECK(is_float(a.data.dtype()) && b.data.dtype() == a.data.dtype(),
             "{}: the operands are {} and {}, expected one float type", op,
             dtype_name(a.data.dtype()), dtype_name(b.data.dtype()));
    return;
  }
  MT_CHECK(fits && a.format().outer_scale() && b.format().outer_scale() && !a.transposed &&
               !b.transposed,
           "{}: 8-bit operands {} and {}, expected one scale each and sizes that fit", op,
           a.data.shape().str(), b.data.shape().str());
}
}  // namespace

Tensor grouped_matmul(Stream& stream, const char* name, const Operand& a_RK, const Operand& b_EKN,
                      const Tensor& first_E1, bool trans_b, DType out, bool unused_rows,
                      const Tensor& into) {
  const Tensor &a = a_RK.data, &b = b_EKN.data;
  const int64_t R = a.dim(0), K = a.dim(1), E = b.dim(0), N = b.dim(trans_b ? 1 : 2);
  MT_CHECK(b.dim(trans_b ? 2 : 1) == K, "grouped_matmul: a {} and b {}{} do not share K",
           a.shape().str(), b.shape().str(), trans_b ? "^T" : "");
  MT_SHAPE("grouped_matmul", first_E1, {E + 1});
  const Tensor c = result(stream, "grouped_matmul", into, {R, N}, out);
  if (unused_rows) fill(stream, c, 0);
  const kernels::GroupedMatmul args{.a_RK = a,
                                    .b_EKN = b,
                                    .first_E1 = first_E1,
                                    .c_RN = c,
                                    .R = R,
                                    .N = N,
                                    .K = K,
                                    .E = E,
                                    .trans_b = trans_b,
                                    .bf16 = bf16_of(stream.device()),
                                    .a_inverse = a_RK.inverse,
                                    .b_inverse = b_EKN.inverse,
                                    .own_kernel = stream.device().own_grouped_gemm(),
                                    .sm_margin = stream.device().gemm_sm_margin()};
  check_grouped_operands("grouped_matmul", a_RK, b_EKN, float8_fits(args));
  enqueue(stream, name, args);
  return c;
}

void grouped_weight_gradient_into(Stream& stream, const char* name, const Operand& a_RM,
                                  const Operand& b_RN, const Tensor& first_E1, const Tensor& c_EMN,
                                  bool accumulate) {
  const Tensor &a = a_RM.data, &b = b_RN.data;
  const int64_t R = a.dim(0), M = a.dim(1), N = b.dim(1), E = c_EMN.dim(0);
  MT_SHAPE("grouped_weight_gradient", b, {R, N});
  MT_SHAPE("grouped_weight_gradient", c_EMN, {E, M, N});
  MT_SHAPE("grouped_weight_gradient", first_E1, {E + 1});
  MT_DTYPE("grouped_weight_gradient", c_EMN, DType::f32);
  const kernels::GroupedWeightGrad args{.a_RM = a,
                                        .b_RN = b,
                                        .first_E1 = first_E1,
                                        .c_EMN = c_EMN,
                                        .R = R,
                                        .M = M,
                                        .N = N,
                                        .E = E,
                                        .accumulate = accumulate,
                                        .bf16 = bf16_of(stream.device()),
                                        .a_inverse = a_RM.inverse,
                                        .b_inverse = b_RN.inverse,
                                        .own_kernel = stream.device().own_grouped_gemm(),
                                        .sm_margin = stream.device().gemm_sm_margin()};
  check_grouped_operands("grouped_weight_gradient", a_RM, b_RN, float8_fits(args));
  enqueue(stream, name, args);
}

Tensor weighted_swiglu(Stream& stream, const Tensor& gate_up_R2F, const Tensor& weight_R,
                       const Tensor& into, GateFunction gate) {
  MT_FLOAT("weighted_swiglu", gate_up_R2F);
  const int64_t R = gate_up_R2F.dim(0), F = exact_div(gate_up_R2F.dim(1), int64_t{2});
  MT_SHAPE("weighted_swiglu", weight_R, {R});
  MT_DTYPE("weighted_swiglu", weight_R, DType::f32);
  const Tensor y = result(stream, "weighted_swiglu", into, {R, F}, gate_up_R2F.dtype());
  enqueue(stream, gate == GateFunction::silu ? "weighted_swiglu_fwd" : "weighted_geglu_fwd",
          kernels::WeightedSwigluForward{.gate_up_R2F = gate_up_R2F,
                                         .weight_R = weight_R,
                                         .y_RF = y,
                                         .R = R,
                                         .F = F,
                                         .gate = gate});
  return y;
}

WeightedSwigluGradients weighted_swiglu_backward(Stream& stream, const Tensor& gate_up_R2F,
                                                 const Tensor& weight_R, const Tensor& dy_RF,
                                                 const Tensor& y_RF, const Tensor& into,
                                                 GateFunction gate) {
  MT_FLOAT("weighted_swiglu_backward", gate_up_R2F);
  const int64_t R = gate_up_R2F.dim(0), F = exact_div(gate_up_R2F.dim(1), int64_t{2});
  MT_SHAPE("weighted_swiglu_backward", weight_R, {R});
  MT_SHAPE("weighted_swiglu_backward", dy_RF, {R, F});
  MT_DTYPE("weighted_swiglu_backward", dy_RF, gate_up_R2F.dtype());
  if (y_RF) MT_SHAPE("weighted_swiglu_backward", y_RF, {R, F});
  const WeightedSwigluGradients d{
      result(stream, "weighted_swiglu_backward", into, gate_up_R2F.shape(), gate_up_R2F.dtype()),
      Tensor::empty(stream, {R}, DType::f32)};
  enqueue(stream, gate == GateFunction::silu ? "weighted_swiglu_bwd" : "weighted_geglu_bwd",
          kernels::WeightedSwigluBackward{.gate_up_R2F = gate_up_R2F,
                                          .weight_R = weight_R,
                                          .dy_RF = dy_RF,
                                          .dgate_up_R2F = d.dgate_up_R2F,
                                          .dweight_R = d.dweight_R,
                                          .y_RF = y_RF,
                                          .R = R,
                                          .F = F,
                                          .gate = gate});
  return d;
}

}  // namespace mtrain::ops
