#include "kernels/rank_choices.h"

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/reduce.h"

namespace mtrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A thread has a token: it repeatedly finds the smallest rank above the previous one, until there
// is none.
__global__ void __launch_bounds__(kThreads)
    find_ranks(const int32_t* expert_TK, int32_t* rank_TM, int64_t tokens, int K, int M, int N,
               int experts_per_rank) {
  for (int64_t t = int64_t(blockIdx.x) * kThreads + threadIdx.x; t < tokens;
       t += int64_t(gridDim.x) * kThreads) {
    int before = -1;
    for (int m = 0; m < M; ++m) {
      int least = N;
      for (int k = 0; k < K && before < N; ++k) {
        const int expert = expert_TK[t * K + k], rank = expert / experts_per_rank;
        if (expert >= 0 && rank > before && rank < least) least = rank;
      }
      rank_TM[t * M + m] = least < N ? least : -1;
      before = least;
    }
  }
}

// Each rank has a block, as each expert has in permute.cu's count_choices().
constexpr int kNumbers = 1024, kWarps = kNumbers / kWarp;  // at once
__global__ void __launch_bounds__(kNumbers)
    count_ranks(const int32_t* expert_TK, const int32_t* rank_TM, int32_t* count_2N,
                int64_t choices, int64_t ranks, int N, int experts_per_rank) {
  __shared__ int slots[kWarps];
  const int mine = int(blockIdx.x);
  int tokens = 0, here = 0;
  for (int64_t i = threadIdx.x; i < ranks; i += kNumbers) tokens += rank_TM[i] == mine;
  for (int64_t i = threadIdx.x; i < choices; i += kNumbers)
    here += expert_TK[i] >= mine * experts_per_rank && expert_TK[i] < (mine + 1) * experts_per_rank;
  tokens = row_sum(tokens, kWarps, slots);
  here = row_sum(here, kWarps, slots);
  if (threadIdx.x == 0) count_2N[mine] = tokens, count_2N[N + mine] = here;
}

__global__ void __launch_bounds__(kThreads)
    experts_of_rows(const int32_t* expert_TK, const int32_t* rank_TM, const int32_t* choice_R,
                    int32_t* expert_RK, int64_t count, int K, int M, int experts_per_rank) {
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += int64_t(gridDim.x) * kThreads) {
    const int choice = choice_R[i / K];
    int expert = -1;
    if (choice >= 0) {
      const int e = expert_TK[int64_t(choice / M) * K + i % K];
      if (e >= 0 && e / experts_per_rank == rank_TM[choice]) expert = e;
    }
    expert_RK[i] = expert;
  }
}

}  // namespace

void run(const RankChoices& a, CUstream_st* stream) {
  if (a.T > 0)
    MT_LAUNCH(find_ranks, blocks_for(a.T, kThreads), kThreads, 0, stream,
              data<int32_t>(a.expert_TK), data<int32_t>(a.rank_TM), a.T, int(a.K), int(a.M),
              int(a.N), int(a.experts_per_rank));
  if (a.N > 0)
    MT_LAUNCH(count_ranks, unsigned(a.N), kNumbers, 0, stream, data<int32_t>(a.expert_TK),
              data<int32_t>(ConstSpan(a.rank_TM)), data<int32_t>(a.count_2N), a.T * a.K, a.T * a.M,
              int(a.N), int(a.experts_per_rank));
}

void run(const ExpertsOfRows& a, CUstream_st* stream) {
  const int64_t count = a.R * a.K;
  if (count <= 0) return;
  MT_LAUNCH(experts_of_rows, blocks_for(count, kThreads), kThreads, 0, stream,
            data<int32_t>(a.expert_TK), data<int32_t>(a.rank_TM), data<int32_t>(a.choice_R),
            data<int32_t>(a.expert_RK), count, int(a.K), int(a.M), int(a.experts_per_rank));
}

}  // namespace mtrain::kernels::cuda
