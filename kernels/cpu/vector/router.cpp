#include "kernels/router.h"

#include "kernels/cpu/simd.h"

namespace mtrain::kernels::cpu::MTRAIN_ISA {
namespace {

constexpr int64_t kGrain = 4096;  // logits in a chunk: more work than waking a thread

// --- scores of one token ---
template <class T>
float largest(const T* x, int64_t E) {
  Vf top = splat(-__builtin_inff());
  const Vf lowest = top;
  for_lanes(E, [&](int64_t e, auto m) { top = vmax(first_lanes(m, load(x + e, m), lowest), top); });
  return max_lanes(top);
}
template <class T>
float log_sum_of(const T* x, int64_t E) {
  const float max = largest(x, E), shift = max == -__builtin_inff() ? 0.0f : max;
  Vf sum = {};
  for_lanes(E, [&](int64_t e, auto m) { sum += only(vexp(load(x + e, m) - shift), m); });
  return shift + float(__builtin_log(double(sum_lanes(sum))));
}
// Returns the scores of the logits at x; a softmax uses `log_sum`.
template <class T, class Lanes>
MT_INLINE Vf scores(RouterScore form, const T* x, float log_sum, Lanes m) {
  const Vf v = load(x, m);
  return only(form == RouterScore::softmax ? vexp(v - log_sum) : sigmoid(v), m);
}

// --- choices --- Returns the index of the largest value that is not taken, the first among equal
// ones.
MT_INLINE int64_t best_of(const float* value, const bool* taken, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i)
    if (!taken[i] && (best < 0 || value[i] > value[best])) best = i;
  return best;
}

// Excludes the experts of all groups except the best ones.
void leave_best_groups(const RouterForm& form, int64_t E, int64_t K, const float* value,
                       bool* taken, float* group, bool* group_taken) {
  const int64_t size = E / form.groups;
  const int64_t ranked =
      form.group_experts > 0 ? form.group_experts : max_of(1, K / form.best_groups);
  for (int64_t g = 0; g < form.groups; ++g) {
    group[g] = 0;
    group_taken[g] = false;
    for (int64_t n = 0; n < min_of(ranked, size); ++n) {
      const int64_t e = g * size + best_of(value + g * size, taken + g * size, size);
      group[g] += value[e];
      taken[e] = true;
    }
  }
  for (int64_t e = 0; e < E; ++e) taken[e] = true;
  for (int64_t n = 0; n < form.best_groups; ++n) {
    const int64_t g = best_of(group, group_taken, form.groups);
    group_taken[g] = true;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) taken[e] = false;
  }
}

// weight[k] becomes the softmax over the K chosen logits.
template <class T>
void softmax_over_chosen(const T* x, const int32_t* expert, int64_t K, float* weight) {
  float max = -__builtin_inff();
  for (int64_t k = 0; k < K; ++k) {
    weight[k] = to_float(x[expert[k]]);
    if (weight[k] > max) max = weight[k];
  }
  float sum = 0;
  for (int64_t k = 0; k < K; ++k) sum += weight[k] = __builtin_expf(weight[k] - max);
  for (int64_t k = 0; k < K; ++k) weight[k] /= sum;
}

// The scores of a softmax over all experts, divided by the sum of the chosen ones, are the softmax
// over the chosen ones.
MT_INLINE bool weights_over_chosen(const RouterForm& form) {
  return form.over_chosen || (form.normalize && form.score == RouterScore::softmax);
}
constexpr float kSumEpsilon = 1e-20f;  // added to sums of scores, which may be 0

template <class T>
void tokens(const RouteTokens& a, int64_t begin, int64_t end) {
  const int64_t E = a.E, K = a.K;
  const RouterForm& form = a.form;
  const Scratch<float> score(E), value(E), group(form.groups);
  const Scratch<bool> taken(E), group_taken(form.groups);
  const auto* bias = data_of<float>(a.bias_E);
  for (int64_t t = begin; t < end; ++t) {
    auto* const expert = data_of<int32_t>(a.expert_TK) + t * K;
    auto* const weight = data_of<float>(a.weight_TK) + t * K;
    float& log_sum = data_of<float>(a.log_sum_T)[t];
    float& score_sum = data_of<float>(a.score_sum_T)[t];
    if (a.valid_T.data && data_of<int32_t>(a.valid_T)[t] == 0) {
      for (int64_t k = 0; k < K; ++k) expert[k] = -1, weight[k] = 0;
      log_sum = score_sum = 0;
      continue;
    }
    const T* const x = data_of<T>(a.logits_TE) + t * E;
    log_sum = log_sum_of(x, E);
    Vf sum = {};
    for_lanes(E, [&](int64_t e, auto m) {
      const Vf s = scores(form.score, x + e, log_sum, m);
      sum += s;
      store(score.get() + e, s, m);
    });
    score_sum = sum_lanes(sum);
    if (a.choice_TK.data) {
      for (int64_t k = 0; k < K; ++k) expert[k] = data_of<int32_t>(a.choice_TK)[t * K + k];
    } else {
      // Scores increase with the logits. Logits may differ although their scores are equal after
      // rounding.
      const bool by_logits = form.over_chosen || (!bias && form.groups == 1);
      for (int64_t e = 0; e < E; ++e) {
        value[e] = (by_logits ? to_float(x[e]) : score[e]) + (bias ? bias[e] : 0.0f);
        taken[e] = false;
      }
      if (form.groups > form.best_groups)
        leave_best_groups(form, E, K, value.get(), taken.get(), group.get(), group_taken.get());
      for (int64_t k = 0; k < K; ++k) {
        const int64_t e = best_of(value.get(), taken.get(), E);
        taken[e] = true;
        expert[k] = int32_t(e);
      }
    }
    for (int64_t k = 0; k < K; ++k) weight[k] = score[expert[k]];
    float chosen = 0;
    for (int64_t k = 0; k < K; ++k) chosen += weight[k];
    if (weights_over_chosen(form))
      softmax_over_chosen(x, expert, K, weight);
    else if (form.normalize)
      for (int64_t k = 0; k < K; ++k) weight[k] /= chosen + kSumEpsilon;
    for (int64_t k = 0; k < K; ++k) weight[k] *= form.scale;
  }
}

template <class Args>
MT_INLINE int64_t sample_of(const Args& a, int64_t t) {
  return a.sample_T.data ? data_of<int32_t>(a.sample_T)[t] : t % a.B;
}

// --- sums for the losses: a chunk has some of the experts, and adds the tokens in order ---
template <class T>
void columns(const RouterSums& a, int64_t b, int64_t begin, int64_t end) {
  float* const sum = data_of<float>(a.sums_BS) + b * router_sums(a.E) + a.E;
  const auto* score_sum = data_of<float>(a.score_sum_T);
  const auto* sample = data_of<int32_t>(a.sample_T);
  const int64_t first = sample ? 0 : b, step = sample ? 1 : a.B;
  for_lanes(end - begin, [&](int64_t i, auto m) {
    const int64_t e = begin + i;
    Vf all = {};
    for (int64_t t = first; t < a.T; t += step)
      if (score_sum[t] != 0 && (!sample || sample[t] == b))
        all += scores(a.score, data_of<T>(a.logits_TE) + t * a.E + e,
                      data_of<float>(a.log_sum_T)[t], m) /
               score_sum[t];
    store(sum + e, all, m);
  });
}

// --- gradients ---
// ds[e] becomes the gradient of the score of each expert, from those of the weights.
void score_gradients(const RouterForm& form, const int32_t* expert, const float* dweight, int64_t K,
                     const float* score, float* ds) {
  float sum = kSumEpsilon, inner = 0;
  if (form.normalize) {
    for (int64_t k = 0; k < K; ++k) sum += score[expert[k]];
    for (int64_t k = 0; k < K; ++k) inner += dweight[k] * score[expert[k]] / sum;
  }
  for (int64_t k = 0; k < K; ++k)
    ds[expert[k]] += form.scale * (form.normalize ? (dweight[k] - inner) / sum : dweight[k]);
}

template <class T>
void gradients(const RouteTokensGrad& a, int64_t begin, int64_t end) {
  const int64_t E = a.E, K = a.K;
  const RouterForm& form = a.form;
  const Scratch<float> score(E), ds(E), dx(E), chosen(K);
  for (int64_t t = begin; t < end; ++t) {
    T* const out = data_of<T>(a.dlogits_TE) + t * E;
    const float score_sum = data_of<float>(a.score_sum_T)[t];
    const float log_sum = data_of<float>(a.log_sum_T)[t];
    const auto* expert = data_of<int32_t>(a.expert_TK) + t * K;
    const auto* dweight = data_of<float>(a.dweight_TK) + t * K;
    if (score_sum == 0) {
      __builtin_memset(static_cast<void*>(out), 0, size_t(E) * sizeof(T));
      continue;
    }
    const T* const x = data_of<T>(a.logits_TE) + t * E;
    const float* loss =
        a.grad_BG.data ? data_of<float>(a.grad_BG) + sample_of(a, t) * (E + 1) : nullptr;
    for_lanes(E, [&](int64_t e, auto m) {
      store(score.get() + e, scores(form.score, x + e, log_sum, m), m);
      store(ds.get() + e, Vf{}, m);
      store(dx.get() + e, Vf{}, m);
    });
    if (weights_over_chosen(form)) {
      softmax_over_chosen(x, expert, K, chosen.get());
      float inner = 0;
      for (int64_t k = 0; k < K; ++k) inner += chosen[k] * dweight[k];
      for (int64_t k = 0; k < K; ++k) dx[expert[k]] = form.scale * chosen[k] * (dweight[k] - inner);
    } else {
      score_gradients(form, expert, dweight, K, score.get(), ds.get());
    }
    float mean = 0;  // mean of the losses' gradients, weighted by the normalized scores
    if (loss) {
      Vf sum = {};
      for_lanes(E, [&](int64_t e, auto m) {
        sum += only(load(score.get() + e, m) * load(loss + e, m), m);
      });
      mean = sum_lanes(sum) / score_sum;
      for_lanes(E, [&](int64_t e, auto m) {
        store(ds.get() + e, load(ds.get() + e, m) + (load(loss + e, m) - mean) / score_sum, m);
      });
    }
    float inner = 0;
    if (form.score == RouterScore::softmax) {
      Vf sum = {};
      for_lanes(E, [&](int64_t e, auto m) {
        sum += only(load(score.get() + e, m) * load(ds.get() + e, m), m);
      });
      inner = sum_lanes(sum);
    }
    const float dz = loss ? 2 * log_sum * loss[E] : 0.0f;
    for_lanes(E, [&](int64_t e, auto m) {
      const Vf s = load(score.get() + e, m), d = load(ds.get() + e, m);
      Vf result = load(dx.get() + e, m);
      result += form.score == RouterScore::softmax ? s * (d - inner) : s * (1.0f - s) * d;
      if (dz != 0) result += dz * only(vexp(load(x + e, m) - log_sum), m);
      store(out + e, result, m);
    });
  }
}

}  // namespace

void run(const RouteTokens& a) {
  with_float(a.logits_TE.dtype, [&]<class T>() {
    parallel(a.T, div_up(kGrain, a.E),
             [&](int64_t begin, int64_t end) { tokens<T>(a, begin, end); });
  });
}

void run(const RouterSums& a) {
  const int64_t S = router_sums(a.E);
  auto* const sums = data_of<float>(a.sums_BS);
  __builtin_memset(static_cast<void*>(sums), 0, size_t(a.B * S) * sizeof(float));
  const auto* expert = data_of<int32_t>(a.expert_TK);
  for (int64_t t = 0; t < a.T; ++t) {
    if (data_of<float>(a.score_sum_T)[t] == 0) continue;
    float* const row = sums + sample_of(a, t) * S;
    const float log_sum = data_of<float>(a.log_sum_T)[t];
    for (int64_t k = 0; k < a.K; ++k)
      if (expert[t * a.K + k] >= 0) ++row[expert[t * a.K + k]];
    row[2 * a.E] += log_sum * log_sum;
    ++row[2 * a.E + 1];
  }
  with_float(a.logits_TE.dtype, [&]<class T>() {
    for (int64_t b = 0; b < a.B; ++b)
      parallel(a.E, max_of(kLanes, div_up(kGrain, a.T / a.B)),
               [&](int64_t begin, int64_t end) { columns<T>(a, b, begin, end); });
  });
}

void run(const RouteTokensGrad& a) {
  with_float(a.logits_TE.dtype, [&]<class T>() {
    parallel(a.T, div_up(kGrain, a.E),
             [&](int64_t begin, int64_t end) { gradients<T>(a, begin, end); });
  });
}

}  // namespace mtrain::kernels::cpu::MTRAIN_ISA
