// A warp has one token: lane l has the experts l, l + 32, ....
#include "kernels/router.h"

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/reduce.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
// A lane remembers in 64 bits which of its own experts are taken.
static_assert(kMaxRouterExperts <= 64 * kWarp);
constexpr float kSumEpsilon = 1e-20f;  // added to sums of scores, which may be 0

template <class T>
__device__ __forceinline__ float score_of(RouterScore form, T x, float log_sum) {
  const float v = load_one(&x);
  return form == RouterScore::softmax ? expf(v - log_sum) : fast_reciprocal(1.0f + expf(-v));
}

// --- choices ---
struct Best {
  float value;
  int expert;  // -1: none is left
};
__device__ __forceinline__ bool better(const Best& a, const Best& b) {
  if (a.expert < 0 || b.expert < 0) return b.expert < 0 && a.expert >= 0;
  return a.value > b.value || (a.value == b.value && a.expert < b.expert);
}
// Returns the best of all experts that no lane has taken, the same to every lane.
__device__ __forceinline__ Best best_of(const float* value, uint64_t taken, int E, int lane) {
  Best best{0, -1};
  for (int e = lane, i = 0; e < E; e += kWarp, ++i)
    if (!(taken >> i & 1) && (best.expert < 0 || value[e] > best.value)) best = {value[e], e};
#pragma unroll
  for (int i = kWarp / 2; i > 0; i /= 2) {
    const Best other{__shfl_xor_sync(kAllLanes, best.value, i),
                     __shfl_xor_sync(kAllLanes, best.expert, i)};
    if (better(other, best)) best = other;
  }
  // If values are NaN, the lanes' results may differ.
  return {__shfl_sync(kAllLanes, best.value, 0), __shfl_sync(kAllLanes, best.expert, 0)};
}
__device__ __forceinline__ void take(uint64_t& taken, int e, int lane) {
  if (e % kWarp == lane) taken |= uint64_t(1) << (e / kWarp);
}

// Returns the sum of the largest `n` of `size` values, added in decreasing order.
__device__ __forceinline__ float sum_of_best(const float* value, int size, int n) {
  float sum = 0, last = INFINITY;
  int last_at = -1;
  for (; n > 0; --n) {
    int best = -1;
    for (int i = 0; i < size; ++i) {
      const bool comes_later = value[i] < last || (value[i] == last && i > last_at);
      if (comes_later && (best < 0 || value[i] > value[best])) best = i;
    }
    if (best < 0) return NAN;  // all remaining values are NaN
    sum += last = value[best];
    last_at = best;
  }
  return sum;
}

// Returns the bits of this lane's experts that are outside of the best groups.
__device__ __forceinline__ uint64_t outside_best_groups(const RouterForm& form, const float* value,
                                                        float* group, int E, int K, int lane) {
  const int groups = int(form.groups), size = E / groups;
  const int ranked =
      form.group_experts > 0 ? int(form.group_experts) : max(1, K / int(form.best_groups));
  for (int g = lane; g < groups; g += kWarp)
    group[g] = sum_of_best(value + g * size, size, min(size, ranked));
  __syncwarp();
  uint64_t taken = ~uint64_t(0), groups_taken = 0;
  for (int n = 0; n < int(form.best_groups); ++n) {
    const int chosen = best_of(group, groups_taken, groups, lane).expert;
    take(groups_taken, chosen, lane);
    for (int e = lane, i = 0; e < E; e += kWarp, ++i)
      if (e / size == chosen) taken &= ~(uint64_t(1) << i);
  }
  return taken;
}

// weight[k] becomes the softmax over the K chosen logits. One lane does this.
template <class T>
__device__ __forceinline__ void softmax_over_chosen(const T* x, const int32_t* expert, int K,
                                                    float* weight) {
  float max = -INFINITY, sum = 0;
  for (int k = 0; k < K; ++k) max = fmaxf(max, load_one(x + expert[k]));
  for (int k = 0; k < K; ++k) sum += weight[k] = expf(load_one(x + expert[k]) - max);
  for (int k = 0; k < K; ++k) weight[k] *= fast_reciprocal(sum);
}

// The scores of a softmax over all experts, divided by the sum of the chosen ones, are the softmax
// over the chosen ones.
__device__ __forceinline__ bool weights_over_chosen(const RouterForm& form) {
  return form.over_chosen || (form.normalize && form.score == RouterScore::softmax);
}

// One lane computes the weights of a token's choices from the scores.
template <class T>
__device__ __forceinline__ void weigh(const RouterForm& form, const T* x, const float* score,
                                      const int32_t* expert, int K, float* weight) {
  float sum = kSumEpsilon;
  for (int k = 0; k < K; ++k) sum += weight[k] = score[expert[k]];
  if (weights_over_chosen(form))
    softmax_over_chosen(x, expert, K, weight);
  else if (form.normalize)
    for (int k = 0; k < K; ++k) weight[k] *= fast_reciprocal(sum);
  for (int k = 0; k < K; ++k) weight[k] *= form.scale;
}

struct Routed {  // pointers of RouteTokens
  const float* bias_E;
  const int32_t *valid_T, *choice_TK;
  int32_t* expert_TK;
  float *weight_TK, *log_sum_T, *score_sum_T;
};

// With GIVEN the choices are those of choice_TK.
template <class T, bool GIVEN>
__global__ void MT_BOUNDS(kThreads)
    route(const T* logits_TE, Routed a, int64_t tokens, int E, int K, RouterForm form) {
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  float* const score = dynamic_shared<float>() + warp * (2 * E + int(form.groups));
  float *const value = score + E, *const group = value + E;
  for (int64_t t = int64_t(blockIdx.x) * kWarps + warp; t < tokens;
       t += int64_t(gridDim.x) * kWarps) {
    int32_t* const expert = a.expert_TK + t * K;
    float* const weight = a.weight_TK + t * K;
    if (a.valid_T && a.valid_T[t] == 0) {
      for (int k = lane; k < K; k += kWarp) expert[k] = -1, weight[k] = 0;
      if (lane == 0) a.log_sum_T[t] = a.score_sum_T[t] = 0;
      continue;
    }
    const T* const x = logits_TE + t * E;
    float max = -INFINITY, sum = 0;
    for (int e = lane; e < E; e += kWarp) max = fmaxf(max, load_one(x + e));
    max = warp_max(max);
    const float shift = max == -INFINITY ? 0.0f : max;
    for (int e = lane; e < E; e += kWarp) sum += expf(load_one(x + e) - shift);
    const float log_sum = shift + logf(warp_sum(sum));
    // Scores increase with the logits. Logits may differ although their scores are equal after
    // rounding.
    const bool by_logits = form.over_chosen || (!a.bias_E && form.groups == 1);
    sum = 0;
    for (int e = lane; e < E; e += kWarp) {
      sum += score[e] = score_of(form.score, x[e], log_sum);
      value[e] = (by_logits ? load_one(x + e) : score[e]) + (a.bias_E ? a.bias_E[e] : 0.0f);
    }
    sum = warp_sum(sum);
    __syncwarp();
    uint64_t taken = 0;
    if (!GIVEN && form.groups > form.best_groups)
      taken = outside_best_groups(form, value, group, E, K, lane);
    for (int k = 0; k < K; ++k) {
      const int e = GIVEN ? a.choice_TK[t * K + k] : best_of(value, taken, E, lane).expert;
      take(taken, e, lane);
      if (lane == 0) expert[k] = e;
    }
    if (lane == 0) {
      weigh(form, x, score, expert, K, weight);
      a.log_sum_T[t] = log_sum;
      a.score_sum_T[t] = sum;
    }
    __syncwarp();  // lanes may write scores again
  }
}

// --- sums for the losses ---
constexpr int kSlices = 32;  // of a sample's tokens; a column's sums are added in slice order

// The tokens of a sample: every B-th token, or those that sample_T gives to it. All are at first +
// i * step for some i.
struct TokensOfSample {
  const int32_t* sample_T;
  int64_t first, step;
  int sample;
  __device__ TokensOfSample(const int32_t* sample_of_token, int s, int B)
      : sample_T(sample_of_token), first(sample_T ? 0 : s), step(sample_T ? 1 : B), sample(s) {}
  __device__ bool has(int64_t t) const { return !sample_T || sample_T[t] == sample; }
};

// A block has 32 experts of a sample.
template <class T>
__global__ void __launch_bounds__(kSlices* kWarp)
    sum_scores(const T* logits_TE, const float* log_sum_T, const float* score_sum_T,
               const int32_t* sample_T, float* sums_BS, int64_t tokens, int B, int E,
               RouterScore form) {
  __shared__ float part[kSlices][kWarp];
  const int lane = int(threadIdx.x) % kWarp, slice = int(threadIdx.x) / kWarp;
  const int e = int(blockIdx.x) * kWarp + lane;
  const TokensOfSample of(sample_T, int(blockIdx.y), B);
  float sum = 0;
  if (e < E)
    for (int64_t t = slice * of.step + of.first; t < tokens; t += kSlices * of.step)
      if (score_sum_T[t] != 0 && of.has(t))
        sum += score_of(form, logits_TE[t * E + e], log_sum_T[t]) * fast_reciprocal(score_sum_T[t]);
  part[slice][lane] = sum;
  __syncthreads();
  if (slice != 0 || e >= E) return;
  sum = 0;
  for (int s = 0; s < kSlices; ++s) sum += part[s][lane];
  sums_BS[int64_t(blockIdx.y) * (2 * E + 2) + E + e] = sum;
}

// A block counts the choices of one expert in a sample; the last one sums over the tokens.
constexpr int kCounters = 256, kCounterWarps = kCounters / kWarp;
__global__ void __launch_bounds__(kCounters)
    count_tokens(const int32_t* expert_TK, const float* log_sum_T, const float* score_sum_T,
                 const int32_t* sample_T, float* sums_BS, int64_t tokens, int B, int E, int K) {
  __shared__ int counts[kWarp];
  __shared__ float slots[kWarp];
  const int mine = int(blockIdx.x);
  const TokensOfSample of(sample_T, int(blockIdx.y), B);
  float* const row = sums_BS + int64_t(blockIdx.y) * (2 * E + 2);
  int count = 0;
  if (mine < E) {
    for (int64_t t = threadIdx.x * of.step + of.first; t < tokens; t += kCounters * of.step) {
      if (!of.has(t)) continue;
      for (int k = 0; k < K; ++k) count += expert_TK[t * K + k] == mine;
    }
    count = row_sum(count, kCounterWarps, counts);
    if (threadIdx.x == 0) row[mine] = float(count);
    return;
  }
  float squares = 0;
  for (int64_t t = threadIdx.x * of.step + of.first; t < tokens; t += kCounters * of.step) {
    if (score_sum_T[t] == 0 || !of.has(t)) continue;
    squares += log_sum_T[t] * log_sum_T[t];
    ++count;
  }
  squares = row_sum(squares, kCounterWarps, slots);
  count = row_sum(count, kCounterWarps, counts);
  if (threadIdx.x != 0) return;
  row[2 * E] = squares;
  row[2 * E + 1] = float(count);
}

// One block: there are a few numbers for each expert.
struct LossPointers {
  const float *sums_BS, *fraction_E, *scale;
  double* loss_2;
  float* grad_BG;
};
struct Coefficients {
  float batch, sample, global, z, grad_scale;
};
__global__ void MT_BOUNDS(kCounters)
    losses(LossPointers a, Coefficients coeff, int64_t B, int experts, int chosen) {
  __shared__ double slots[kWarp];
  const int64_t S = 2 * experts + 2, G = experts + 1;
  const double scale = a.scale ? *a.scale : coeff.grad_scale;
  const double E = experts, K = chosen;
  double tokens = 0, squares = 0;
  int64_t samples = 0;  // samples that have tokens
  for (int64_t b = 0; b < B; ++b) {
    squares += a.sums_BS[b * S + 2 * experts];
    tokens += a.sums_BS[b * S + 2 * experts + 1];
    samples += a.sums_BS[b * S + 2 * experts + 1] > 0;
  }
  double balance = 0;
  for (int e = int(threadIdx.x); e <= experts; e += kCounters) {
    for (int64_t b = 0; b < B; ++b)
      a.grad_BG[b * G + e] = e == experts && samples ? float(scale * coeff.z / tokens) : 0.0f;
    if (e == experts || samples == 0) continue;
    double count = 0, score = 0;
    for (int64_t b = 0; b < B; ++b) {
      count += a.sums_BS[b * S + e];
      score += a.sums_BS[b * S + experts + e];
    }
    double all = coeff.batch * count / (tokens * K);
    if (coeff.global != 0) all += double(coeff.global) * a.fraction_E[e];
    balance += E * all * score / tokens;
    for (int64_t b = 0; b < B; ++b) {
      const float* row = a.sums_BS + b * S;
      const double own = row[2 * experts + 1];
      if (own <= 0) continue;
      const double each = coeff.sample * row[e] / (own * K * double(samples));
      balance += E * each * row[experts + e] / own;
      a.grad_BG[b * G + e] = float(scale * E * (all / tokens + each / own));
    }
  }
  balance = row_sum(balance, kCounterWarps, slots);
  if (threadIdx.x != 0 || samples == 0) return;
  a.loss_2[0] += balance;
  a.loss_2[1] += coeff.z * squares / tokens;
}

// --- gradients --- One lane adds the gradients from the weights to the gradients of the scores or
// of the logits.
template <class T>
__device__ __forceinline__ void weights_gradient(const RouterForm& form, const T* x,
                                                 const int32_t* expert, const float* dweight, int K,
                                                 const float* score, float* ds, float* dx) {
  if (weights_over_chosen(form)) {
    float max = -INFINITY, sum = 0, inner = 0;
    for (int k = 0; k < K; ++k) max = fmaxf(max, load_one(x + expert[k]));
    for (int k = 0; k < K; ++k) sum += dx[expert[k]] = expf(load_one(x + expert[k]) - max);
    const float scale = fast_reciprocal(sum);
    for (int k = 0; k < K; ++k) inner += dx[expert[k]] * scale * dweight[k];
    for (int k = 0; k < K; ++k) dx[expert[k]] *= form.scale * scale * (dweight[k] - inner);
    return;
  }
  float sum = kSumEpsilon, inner = 0;
  if (form.normalize) {
    for (int k = 0; k < K; ++k) sum += score[expert[k]];
    for (int k = 0; k < K; ++k) inner += dweight[k] * score[expert[k]] * fast_reciprocal(sum);
  }
  for (int k = 0; k < K; ++k)
    ds[expert[k]] +=
        form.scale * (form.normalize ? (dweight[k] - inner) * fast_reciprocal(sum) : dweight[k]);
}

struct Backward {  // pointers of RouteTokensGrad
  const int32_t* expert_TK;
  const float *log_sum_T, *score_sum_T, *dweight_TK, *grad_BG;
  const int32_t* sample_T;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    route_grad(const T* logits_TE, Backward a, T* dlogits_TE, int64_t tokens, int B, int E, int K,
               RouterForm form) {
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  float* const score = dynamic_shared<float>() + warp * 3 * E;
  float *const ds = score + E, *const dx = ds + E;
  const bool softmax = form.score == RouterScore::softmax;
  for (int64_t t = int64_t(blockIdx.x) * kWarps + warp; t < tokens;
       t += int64_t(gridDim.x) * kWarps) {
    T* const out = dlogits_TE + t * E;
    const float score_sum = a.score_sum_T[t], log_sum = a.log_sum_T[t];
    if (score_sum == 0) {
      for (int e = lane; e < E; e += kWarp) store_one(out + e, 0.0f);
      continue;
    }
    const T* const x = logits_TE + t * E;
    const int64_t sample = a.sample_T ? a.sample_T[t] : t % B;
    const float* loss = a.grad_BG ? a.grad_BG + sample * (E + 1) : nullptr;
    for (int e = lane; e < E; e += kWarp) {
      score[e] = score_of(form.score, x[e], log_sum);
      ds[e] = dx[e] = 0;
    }
    __syncwarp();
    if (lane == 0)
      weights_gradient(form, x, a.expert_TK + t * K, a.dweight_TK + t * K, K, score, ds, dx);
    __syncwarp();
    float mean = 0, inner = 0;  // means of loss and ds, weighted by the scores
    if (loss) {
      const float per_sum = fast_reciprocal(score_sum);
      for (int e = lane; e < E; e += kWarp) mean += score[e] * loss[e];
      mean = warp_sum(mean) * per_sum;
      for (int e = lane; e < E; e += kWarp) ds[e] += (loss[e] - mean) * per_sum;
    }
    if (softmax)
      for (int e = lane; e < E; e += kWarp) inner += score[e] * ds[e];
    inner = warp_sum(inner);
    const float dz = loss ? 2 * log_sum * loss[E] : 0.0f;
    for (int e = lane; e < E; e += kWarp) {
      float result = dx[e];
      result += softmax ? score[e] * (ds[e] - inner) : score[e] * (1.0f - score[e]) * ds[e];
      if (dz != 0) result += dz * expf(load_one(x + e) - log_sum);
      store_one(out + e, result);
    }
    __syncwarp();  // lanes may write scores again
  }
}

// --- biases and capacity ---
__global__ void __launch_bounds__(kCounters)
    update_bias(const float* count_E, float* bias_E, int E, float rate) {
  __shared__ double slots[kWarp];
  double all = 0;
  for (int e = int(threadIdx.x); e < E; e += kCounters) all += count_E[e];
  all = row_sum(all, kCounterWarps, slots);
  for (int e = int(threadIdx.x); e < E; e += kCounters) {
    const double above = double(count_E[e]) * E - all;
    if (above != 0) bias_E[e] += above > 0 ? -rate : rate;
  }
}

// Weights are not negative: their bits as integers have the order of the weights.
__device__ __forceinline__ unsigned order_of(const float* weight_TK, int64_t choice) {
  return weight_TK ? __float_as_uint(weight_TK[choice]) : 0u;
}

// A block has one expert, and changes only its own choices. It finds the smallest kept weight, bit
// by bit; among equal weights, the first choices are kept.
__global__ void __launch_bounds__(kCounters)
    drop_choices(int32_t* expert_TK, const float* weight_TK, float* dropped_E, int64_t choices,
                 int capacity) {
  __shared__ int slots[kWarp];
  const int mine = int(blockIdx.x), thread = int(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  const auto count_from = [&](unsigned least) {
    int count = 0;
    for (int64_t i = thread; i < choices; i += kCounters)
      count += expert_TK[i] == mine && order_of(weight_TK, i) >= least;
    return row_sum(count, kCounterWarps, slots);
  };
  const int count = count_from(0);
  if (count <= capacity) return;
  if (thread == 0) dropped_E[mine] += float(count - max(capacity, 0));
  unsigned least = 0;
  if (weight_TK && capacity > 0)
    for (int bit = 30; bit >= 0; --bit)
      if (count_from(least | 1u << bit) >= capacity) least |= 1u << bit;
  // The number of choices with the weight `least` that are kept.
  int equal = capacity - (weight_TK ? count_from(least + 1) : 0);
  for (int64_t base = 0; base < choices; base += kCounters) {
    const int64_t i = base + thread;
    const bool match = i < choices && expert_TK[i] == mine;
    const unsigned order = match ? order_of(weight_TK, i) : 0u;
    const unsigned ties = __ballot_sync(kAllLanes, match && order == least);
    if (lane == 0) slots[warp] = __popc(ties);
    __syncthreads();
    int ahead = 0, all = 0;
    for (int w = 0; w < kCounterWarps; ++w) {
      if (w < warp) ahead += slots[w];
      all += slots[w];
    }
    ahead += __popc(ties & ((1u << lane) - 1));
    if (match && (order < least || (order == least && ahead >= equal) || capacity <= 0))
      expert_TK[i] = -1;
    equal -= all;
    __syncthreads();  // slots may be written again
  }
}

}  // namespace

void run(const RouteTokens& a, CUstream_st* stream) {
  if (a.T <= 0) return;
  const Routed to{data<float>(a.bias_E),      data<int32_t>(a.valid_T), data<int32_t>(a.choice_TK),
                  data<int32_t>(a.expert_TK), data<float>(a.weight_TK), data<float>(a.log_sum_T),
                  data<float>(a.score_sum_T)};
  const int64_t shared = kWarps * (2 * a.E + a.form.groups) * int64_t(sizeof(float));
  with_float(a.logits_TE.dtype, [&]<class T>() {
    MT_LAUNCH((a.choice_TK ? route<T, true> : route<T, false>), blocks_for(a.T, kWarps), kThreads,
              shared, stream, data<T>(a.logits_TE), to, a.T, int(a.E), int(a.K), a.form);
  });
}

void run(const RouterSums& a, CUstream_st* stream) {
  MT_LAUNCH(count_tokens, dim3(unsigned(a.E + 1), unsigned(a.B)), kCounters, 0, stream,
            data<int32_t>(a.expert_TK), data<float>(a.log_sum_T), data<float>(a.score_sum_T),
            data<int32_t>(a.sample_T), data<float>(a.sums_BS), a.T, int(a.B), int(a.E), int(a.K));
  with_float(a.logits_TE.dtype, [&]<class T>() {
    MT_LAUNCH(sum_scores<T>, dim3(unsigned(div_up(a.E, kWarp)), unsigned(a.B)), kSlices * kWarp, 0,
              stream, data<T>(a.logits_TE), data<float>(a.log_sum_T), data<float>(a.score_sum_T),
              data<int32_t>(a.sample_T), data<float>(a.sums_BS), a.T, int(a.B), int(a.E), a.score);
  });
}

void run(const RouterLosses& a, CUstream_st* stream) {
  const LossPointers to{data<float>(a.sums_BS), data<float>(a.fraction_E),
                        data<float>(a.scale_in_memory), data<double>(a.loss_2),
                        data<float>(a.grad_BG)};
  const Coefficients coeff{a.batch_coeff, a.sample_coeff, a.global_coeff, a.z_coeff, a.grad_scale};
  MT_LAUNCH(losses, 1, kCounters, 0, stream, to, coeff, a.B, int(a.E), int(a.K));
}

void run(const RouteTokensGrad& a, CUstream_st* stream) {
  if (a.T <= 0) return;
  const Backward from{data<int32_t>(a.expert_TK), data<float>(a.log_sum_T),
                      data<float>(a.score_sum_T), data<float>(a.dweight_TK),
                      data<float>(a.grad_BG),     data<int32_t>(a.sample_T)};
  const int64_t shared = kWarps * 3 * a.E * int64_t(sizeof(float));
  with_float(a.logits_TE.dtype, [&]<class T>() {
    MT_LAUNCH(route_grad<T>, blocks_for(a.T, kWarps), kThreads, shared, stream,
              data<T>(a.logits_TE), from, data<T>(a.dlogits_TE), a.T, int(a.B), int(a.E), int(a.K),
              a.form);
  });
}

void run(const UpdateRouterBias& a, CUstream_st* stream) {
  MT_LAUNCH(update_bias, 1, kCounters, 0, stream, data<float>(a.count_E), data<float>(a.bias_E),
            int(a.E), a.rate);
}

void run(const DropChoices& a, CUstream_st* stream) {
  if (a.T <= 0) return;
  MT_LAUNCH(drop_choices, unsigned(a.E), kCounters, 0, stream, data<int32_t>(a.expert_TK),
            data<float>(a.weight_TK), data<float>(a.dropped_E), a.T * a.K, int(a.capacity));
}

}  // namespace mtrain::kernels::cuda
