// The router of a layer of experts: which K of E experts compute each token, their weights, and the
// losses that balance the experts' loads. Sources: Shazeer et al. 2017, "Outrageously Large Neural
// Networks"; Fedus et al. 2021, "Switch Transformers"; Zoph et al. 2022, "ST-MoE", for the z-loss;
// DeepSeek-AI 2024, "DeepSeek-V3", for sigmoid scores, groups and the bias.
//
// logits have any float type; experts and counts of tokens are int32; everything else is fp32.
// Among equal scores, the expert with the lower index wins. Padding tokens choose no expert, and
// count in no loss.
#pragma once
#include "base/router_form.h"
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

constexpr int64_t kMaxRouterExperts = 2048;  // E is at most this

// Chooses the experts by score + bias; the weights come only from the scores.
struct RouteTokens {
  ConstSpan logits_TE;
  ConstSpan bias_E;     // optional
  ConstSpan valid_T;    // optional int32: 0 marks padding
  ConstSpan choice_TK;  // optional int32: the experts are these, K different ones for each token
  Span expert_TK;       // by descending score, or as in choice_TK; -1 for padding
  Span weight_TK;       // 0 for padding
  Span log_sum_T;       // log of the sum of e^logit
  Span score_sum_T;     // sum of all scores; 0 marks padding for the structs below
  int64_t T, E, K;
  RouterForm form = {};
};

// Computes the sums that the losses need, over the tokens of each of B samples. A row holds E
// counts of choices, E sums of normalized scores, the sum of log_sum^2 and the number of tokens
// that are not padding. Ranks that share a sample's tokens add their rows.
struct RouterSums {
  ConstSpan logits_TE, expert_TK, log_sum_T, score_sum_T;
  ConstSpan sample_T;  // optional int32: each token's sample; absent: token t is of sample t % B
  Span sums_BS;
  int64_t T, E, K, B;
  RouterScore score = RouterScore::softmax;
};
constexpr int64_t router_sums(int64_t E) { return 2 * E + 2; }  // S, the columns of a row

// Computes the losses from these sums, and their gradients. With f_e = count_e / (tokens K) and P_e
// = (sum of normalized scores)_e / tokens a balance loss is E sum over e of f_e P_e. No gradient
// goes through f.
struct RouterLosses {
  ConstSpan sums_BS;
  ConstSpan fraction_E;  // f of the global loss; needed if global_coeff is not 0
  float batch_coeff = 0, sample_coeff = 0, global_coeff = 0;  // f and P of all samples, of each
                                                              // sample, and P of all samples
  float z_coeff = 0;                                          // mean of log_sum^2
  float grad_scale = 1;
  ConstSpan scale_in_memory = {};  // optional, one fp32: read at run time, replaces grad_scale
  Span loss_2;                     // fp64: the balance losses and the z-loss are added to these two
  Span grad_BG;  // G = E + 1 columns: of each normalized score, and of log_sum^2, of one token
  int64_t B, E, K;
};

// Computes dlogits from the gradients of the weights and, if given, of the losses.
struct RouteTokensGrad {
  ConstSpan logits_TE, expert_TK, log_sum_T, score_sum_T;
  ConstSpan dweight_TK;
  ConstSpan grad_BG;   // optional: of RouterLosses
  ConstSpan sample_T;  // optional, as in RouterSums
  Span dlogits_TE;     // has the type of the logits; overwritten
  int64_t T, E, K, B;  // B is 1 without grad_BG
  RouterForm form = {};
};

// bias[e] += rate sign(mean count - count[e]) (DeepSeek-V3's load balancing without a loss).
struct UpdateRouterBias {
  ConstSpan count_E;  // fp32: choices of the full step
  Span bias_E;
  int64_t E;
  float rate;
};

// Keeps at most `capacity` choices of each expert; the others become -1. It keeps the choices with
// the largest weights, and the earlier of equal weights; or, without weights, the first choices.
struct DropChoices {
  Span expert_TK;
  ConstSpan weight_TK;  // decides which choices are kept; optional
  Span dropped_E;       // fp32: the number of dropped choices of each expert is added
  int64_t T, K, E, capacity;
};

namespace cpu {
void run(const RouteTokens&);
void run(const RouterSums&);
void run(const RouterLosses&);
void run(const RouteTokensGrad&);
void run(const UpdateRouterBias&);
void run(const DropChoices&);
}  // namespace cpu
namespace cuda {
void run(const RouteTokens&, CUstream_st*);
void run(const RouterSums&, CUstream_st*);
void run(const RouterLosses&, CUstream_st*);
void run(const RouteTokensGrad&, CUstream_st*);
void run(const UpdateRouterBias&, CUstream_st*);
void run(const DropChoices&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
