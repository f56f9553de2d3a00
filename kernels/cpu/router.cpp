#include "kernels/router.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

constexpr int64_t kNone = -1;  // no expert

void check_form(const char* op, const RouterForm& form, int64_t E, int64_t K) {
  MT_CHECK(K >= 1 && K <= E && E <= kMaxRouterExperts, "{}: {} of {} experts", op, K, E);
  MT_CHECK(form.groups >= 1 && E % form.groups == 0, "{}: {} groups of {} experts", op, form.groups,
           E);
  MT_CHECK(form.best_groups >= 1 && form.best_groups <= form.groups &&
               K <= form.best_groups * (E / form.groups),
           "{}: {} experts from {} of {} groups", op, K, form.best_groups, form.groups);
  MT_CHECK(!form.over_chosen || form.score == RouterScore::softmax,
           "{}: only a softmax is over the chosen logits", op);
}

template <class Args>
void check_scores(const char* op, const Args& a) {
  check_holds(op, "logits", a.logits_TE, a.T * a.E);
  check(op, "log_sum", a.log_sum_T, a.T, DType::f32);
  check(op, "score_sum", a.score_sum_T, a.T, DType::f32);
}

template <class Args>
void check_samples(const char* op, const Args& a) {
  MT_CHECK(a.B >= 1 && (a.sample_T || a.T % a.B == 0), "{}: {} tokens in {} samples", op, a.T, a.B);
  if (a.sample_T) check_indices(op, "sample", a.sample_T, a.T, a.B);
}

void check_route(const RouteTokens& a) {
  const char* op = "route tokens";
  check_form(op, a.form, a.E, a.K);
  check_scores(op, a);
  if (a.bias_E) check(op, "bias", a.bias_E, a.E, DType::f32);
  if (a.valid_T) check(op, "valid", a.valid_T, a.T, DType::i32);
  if (a.choice_TK) check_indices(op, "choice", a.choice_TK, a.T * a.K, a.E, kNone);
  check(op, "expert", a.expert_TK, a.T * a.K, DType::i32);
  check(op, "weight", a.weight_TK, a.T * a.K, DType::f32);
}

void check_sums(const RouterSums& a) {
  const char* op = "router sums";
  check_samples(op, a);
  check_scores(op, a);
  check_indices(op, "expert", a.expert_TK, a.T * a.K, a.E, kNone);
  check(op, "sums", a.sums_BS, a.B * router_sums(a.E), DType::f32);
}

void check_grad(const RouteTokensGrad& a) {
  const char* op = "route tokens' gradient";
  check_form(op, a.form, a.E, a.K);
  check_samples(op, a);
  check_scores(op, a);
  check_indices(op, "expert", a.expert_TK, a.T * a.K, a.E, kNone);
  check(op, "dweight", a.dweight_TK, a.T * a.K, DType::f32);
  check(op, "dlogits", a.dlogits_TE, a.T * a.E, a.logits_TE.dtype);
  if (a.grad_BG) check(op, "grad", a.grad_BG, a.B * (a.E + 1), DType::f32);
}

void check_losses(const RouterLosses& a) {
  const char* op = "router losses";
  MT_CHECK(a.B >= 1 && a.E >= 1 && a.K >= 1, "{}: {} samples, {} of {} experts", op, a.B, a.K, a.E);
  check(op, "sums", a.sums_BS, a.B * router_sums(a.E), DType::f32);
  if (a.global_coeff != 0) check(op, "fraction", a.fraction_E, a.E, DType::f32);
  if (a.scale_in_memory) check(op, "scale", a.scale_in_memory, 1, DType::f32);
  check(op, "loss", a.loss_2, 2, DType::f64);
  check(op, "grad", a.grad_BG, a.B * (a.E + 1), DType::f32);
}

}  // namespace

MT_DISPATCH(RouteTokens, check_route)
MT_DISPATCH(RouterSums, check_sums)
MT_DISPATCH(RouteTokensGrad, check_grad)

// These process a few numbers for each expert: one thread finishes before other threads would wake
// up.
void run(const RouterLosses& a) {
  check_losses(a);
  const int64_t S = router_sums(a.E), G = a.E + 1;
  const auto* sums = a.sums_BS.as<float>();
  auto* const grad = a.grad_BG.as<float>();
  const double scale = a.scale_in_memory ? *a.scale_in_memory.as<float>() : a.grad_scale,
               E = double(a.E), K = double(a.K);
  double tokens = 0, squares = 0;
  int64_t samples = 0;  // samples that have tokens
  for (int64_t b = 0; b < a.B; ++b) {
    squares += sums[b * S + 2 * a.E];
    tokens += sums[b * S + 2 * a.E + 1];
    samples += sums[b * S + 2 * a.E + 1] > 0;
  }
  std::fill_n(grad, a.B * G, 0.0f);
  if (samples == 0) return;
  double balance = 0;
  for (int64_t e = 0; e < a.E; ++e) {
    double count = 0, score = 0;
    for (int64_t b = 0; b < a.B; ++b) {
      count += sums[b * S + e];
      score += sums[b * S + a.E + e];
    }
    double all = a.batch_coeff * count / (tokens * K);
    if (a.global_coeff != 0) all += double(a.global_coeff) * a.fraction_E.as<float>()[e];
    balance += E * all * score / tokens;
    for (int64_t b = 0; b < a.B; ++b) {
      const float* row = sums + b * S;
      const double own = row[2 * a.E + 1];
      if (own <= 0) continue;
      const double each = a.sample_coeff * row[e] / (own * K * double(samples));
      balance += E * each * row[a.E + e] / own;
      grad[b * G + e] = float(scale * E * (all / tokens + each / own));
    }
  }
  for (int64_t b = 0; b < a.B; ++b) grad[b * G + a.E] = float(scale * double(a.z_coeff) / tokens);
  a.loss_2.as<double>()[0] += balance;
  a.loss_2.as<double>()[1] += a.z_coeff * squares / tokens;
}

void run(const UpdateRouterBias& a) {
  check("router bias", "count", a.count_E, a.E, DType::f32);
  check("router bias", "bias", a.bias_E, a.E, DType::f32);
  const auto* count = a.count_E.as<float>();
  auto* const bias = a.bias_E.as<float>();
  double all = 0;
  for (int64_t e = 0; e < a.E; ++e) all += count[e];
  for (int64_t e = 0; e < a.E; ++e) {
    const double above = double(count[e]) * double(a.E) - all;
    if (above != 0) bias[e] += above > 0 ? -a.rate : a.rate;
  }
}

void run(const DropChoices& a) {
  const int64_t choices = a.T * a.K;
  check("drop choices", "expert", a.expert_TK, choices, DType::i32);
  if (a.weight_TK) check("drop choices", "weight", a.weight_TK, choices, DType::f32);
  check("drop choices", "dropped", a.dropped_E, a.E, DType::f32);
  auto* const expert = a.expert_TK.as<int32_t>();
  const auto* weight = a.weight_TK.as<float>();
  std::vector<std::vector<int32_t>> of(static_cast<size_t>(a.E));
  for (int64_t i = 0; i < choices; ++i)
    if (expert[i] >= 0 && expert[i] < a.E) of[size_t(expert[i])].push_back(int32_t(i));
  for (int64_t e = 0; e < a.E; ++e) {
    std::vector<int32_t>& mine = of[size_t(e)];
    if (int64_t(mine.size()) <= a.capacity) continue;
    const auto kept = mine.begin() + std::max<int64_t>(a.capacity, 0);
    a.dropped_E.as<float>()[e] += float(mine.end() - kept);
    if (weight)
      std::ranges::nth_element(mine, kept, [weight](int32_t i, int32_t j) {
        return weight[i] != weight[j] ? weight[i] > weight[j] : i < j;
      });
    for (auto i = kept; i != mine.end(); ++i) expert[*i] = -1;
  }
}

}  // namespace mtrain::kernels::cpu
