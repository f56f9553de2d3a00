// Operations of a layer with experts: the router, and the experts' GEMMs. kernels/router.h,
// grouped_matmul.h and weighted_swiglu.h have the rules. ops/permute.h has the operations that
// bring tokens to their experts.
#pragma once
#include "kernels/router.h"
#include "ops/activation.h"
#include "ops/operand.h"
#include "ops/operation.h"

namespace mtrain::ops {

struct Routing {
  Tensor expert_TK;               // int32, by descending score, or in the given order
  Tensor weight_TK;               // fp32
  Tensor log_sum_T, score_sum_T;  // fp32, for the functions below
};
// Chooses the K experts of each token. bias_E (fp32, optional) is added to the scores only for the
// choice. valid_T (int32, optional) is 0 for tokens of padding, which get no expert. If choice_TK
// (int32) is present, it gives the experts, and only their weights are computed.
Routing route_tokens(Stream& stream, const Tensor& logits_TE, int64_t K, const RouterForm& form,
                     const Tensor& bias_E = {}, const Tensor& valid_T = {},
                     const Tensor& choice_TK = {});
// bias[e] += rate sign(mean count - count[e]); fp32.
void update_router_bias(Stream& stream, const Tensor& count_E, const Tensor& bias_E, float rate);
// Returns the choices, after dropping (-1) those beyond `capacity` of each expert: the ones with
// the lowest weight if `lightest`, else the last ones. Adds the numbers of dropped ones to
// dropped_E (fp32).
Tensor drop_choices(Stream& stream, const Routing& routing, int64_t capacity, bool lightest,
                    const Tensor& dropped_E);

constexpr int64_t router_sum_columns(int64_t E) { return kernels::router_sums(E); }
// Returns (B, router_sum_columns(E)): the sums that the losses need, over the tokens of each of B
// samples. sample_T (int32) gives each token's sample; without it, token t belongs to sample t % B.
Tensor router_sums(Stream& stream, const Tensor& logits_TE, const Routing& routing, int64_t B,
                   RouterScore score, const Tensor& sample_T = {});

// Adds the balance losses and the z-loss to loss_2 (fp64). Returns their gradients times grad_scale
// for route_tokens_grad(), (B, E + 1). The global loss takes each expert's share of the choices
// from fraction_E (fp32) or, without it, from the sums. grad_scale_1 (fp32, one element, optional)
// replaces grad_scale and is read when the work runs.
Tensor router_losses(Stream& stream, const Tensor& sums_BS, int64_t E, int64_t K,
                     const RouterLossCoeffs& coeffs, float grad_scale, const Tensor& loss_2,
                     const Tensor& fraction_E = {}, const Tensor& grad_scale_1 = {});

// Returns dL/dlogits, in the logits' type. grad_BG (optional) is the result of router_losses();
// sample_T is as for router_sums().
Tensor route_tokens_grad(Stream& stream, const Tensor& logits_TE, const Routing& routing,
                         const Tensor& dweight_TK, const RouterForm& form,
                         const Tensor& grad_BG = {}, const Tensor& sample_T = {});

// Both operands of the GEMMs below are plain, of the same type; or both are quantized, each under
// one scale. kernels/grouped_matmul.h lists the sizes that fit.
//
// Returns the rows [first[e], first[e + 1]) of a times op(b[e]), with b (E, K, N), or (E, N, K) if
// trans_b. The result has the type `out`, which is that of plain operands. With unused_rows, the
// rows after first[E] are set to 0; otherwise they are not written. `into` (optional) is the memory
// of the result.
Tensor grouped_matmul(Stream& stream, const char* name, const Operand& a_RK, const Operand& b_EKN,
                      const Tensor& first_E1, bool trans_b, DType out, bool unused_rows = false,
                      const Tensor& into = {});
// c[e] = a^T b over the rows of expert e, or c[e] += if `accumulate`; fp32.
void grouped_weight_gradient_into(Stream& stream, const char* name, const Operand& a_RM,
                                  const Operand& b_RN, const Tensor& first_E1, const Tensor& c_EMN,
                                  bool accumulate);

// Returns weight f(gate) up, (R, F), where f is silu or another gate function. `into` (optional) is
// the memory of the result.
Tensor weighted_swiglu(Stream& stream, const Tensor& gate_up_R2F, const Tensor& weight_R,
                       const Tensor& into = {}, GateFunction gate = GateFunction::silu);
struct WeightedSwigluGradients {
  Tensor dgate_up_R2F, dweight_R;
};
// y_RF (optional) gets the recomputed output of the forward; it may be dy_RF. `into` (optional) is
// the memory of dgate_up, and may be gate_up.
WeightedSwigluGradients weighted_swiglu_backward(Stream& stream, const Tensor& gate_up_R2F,
                                                 const Tensor& weight_R, const Tensor& dy_RF,
                                                 const Tensor& y_RF, const Tensor& into = {},
                                                 GateFunction gate = GateFunction::silu);

}  // namespace mtrain::ops
