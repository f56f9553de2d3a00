#include "ops/permute.h"

#include <algorithm>
#include <limits>

#include "kernels/permute.h"
#include "kernels/rank_choices.h"
#include "ops/enqueue.h"

MT_KERNEL(ExpertRows)
MT_KERNEL(Permute)
MT_KERNEL(Unpermute)
MT_KERNEL(UnpermuteWeightGrad)
MT_KERNEL(RankChoices)
MT_KERNEL(ExpertsOfRows)

namespace mtrain::ops {

ExpertRows expert_rows(Stream& stream, const Tensor& expert_TK, int64_t E, int64_t begin,
                       int64_t capacity) {
  MT_DTYPE("expert_rows", expert_TK, DType::i32);
  const int64_t T = expert_TK.dim(0), K = expert_TK.dim(1);
  const int64_t rows = capacity > 0 ? E * capacity : T * K;
  MT_CHECK(std::max(T * K, rows) <= std::numeric_limits<int32_t>::max(),
           "expert_rows: {} choices, {} rows", T * K, rows);
  ExpertRows made{Tensor::empty(stream, {E}, DType::i32), Tensor::empty(stream, {T, K}, DType::i32),
                  Tensor::empty(stream, {rows}, DType::i32),
                  Tensor::empty(stream, {E + 1}, DType::i32)};
  enqueue(stream, "expert_rows",
          kernels::ExpertRows{.expert_TK = expert_TK,
                              .count_E = made.count_E,
                              .row_TK = made.row_TK,
                              .choice_R = made.choice_R,
                              .T = T,
                              .K = K,
                              .E = E,
                              .first_E1 = made.first_E1,
                              .begin = begin,
                              .capacity = capacity});
  return made;
}

RankChoices rank_choices(Stream& stream, const Tensor& expert_TK, int64_t N,
                         int64_t experts_per_rank) {
  MT_DTYPE("rank_choices", expert_TK, DType::i32);
  const int64_t T = expert_TK.dim(0), K = expert_TK.dim(1), M = std::min(K, N);
  RankChoices made{Tensor::empty(stream, {T, M}, DType::i32),
                   Tensor::empty(stream, {2, N}, DType::i32)};
  enqueue(stream, "rank_choices",
          kernels::RankChoices{.expert_TK = expert_TK,
                               .rank_TM = made.rank_TM,
                               .count_2N = made.count_2N,
                               .T = T,
                               .K = K,
                               .M = M,
                               .N = N,
                               .experts_per_rank = experts_per_rank});
  return made;
}

Tensor experts_of_rows(Stream& stream, const Tensor& expert_TK, const Tensor& rank_TM,
                       const Tensor& choice_R, int64_t experts_per_rank) {
  MT_DTYPE("experts_of_rows", expert_TK, DType::i32);
  MT_DTYPE("experts_of_rows", choice_R, DType::i32);
  const int64_t T = expert_TK.dim(0), K = expert_TK.dim(1), M = rank_TM.dim(1),
                R = choice_R.count();
  MT_SHAPE("experts_of_rows", rank_TM, {T, M});
  MT_DTYPE("experts_of_rows", rank_TM, DType::i32);
  Tensor expert_RK = Tensor::empty(stream, {R, K}, DType::i32);
  enqueue(stream, "experts_of_rows",
          kernels::ExpertsOfRows{.expert_TK = expert_TK,
                                 .rank_TM = rank_TM,
                                 .choice_R = choice_R,
                                 .expert_RK = expert_RK,
                                 .T = T,
                                 .K = K,
                                 .M = M,
                                 .R = R,
                                 .experts_per_rank = experts_per_rank});
  return expert_RK;
}

Tensor permute(Stream& stream, const Tensor& x_TH, const Tensor& choice_R, int64_t K,
               const Tensor& weight_TK) {
  MT_FLOAT("permute", x_TH);
  MT_DTYPE("permute", choice_R, DType::i32);
  const int64_t T = x_TH.dim(0), H = x_TH.dim(1), R = choice_R.count();
  if (weight_TK) {
    MT_SHAPE("permute", weight_TK, {T, K});
    MT_DTYPE("permute", weight_TK, DType::f32);
  }
  Tensor out = Tensor::empty(stream, {R, H}, x_TH.dtype());
  enqueue(stream, "permute",
          kernels::Permute{.x_TH = x_TH,
                           .choice_R = choice_R,
                           .weight_TK = weight_TK,
                           .out_RH = out,
                           .T = T,
                           .K = K,
                           .R = R,
                           .H = H});
  return out;
}

Tensor unpermute(Stream& stream, const Tensor& x_RH, const Tensor& row_TK,
                 const Tensor& weight_TK) {
  MT_FLOAT("unpermute", x_RH);
  MT_DTYPE("unpermute", row_TK, DType::i32);
  const int64_t T = row_TK.dim(0), K = row_TK.dim(1), R = x_RH.dim(0), H = x_RH.dim(1);
  if (weight_TK) {
    MT_SHAPE("unpermute", weight_TK, {T, K});
    MT_DTYPE("unpermute", weight_TK, DType::f32);
  }
  Tensor out = Tensor::empty(stream, {T, H}, x_RH.dtype());
  enqueue(stream, "unpermute",
          kernels::Unpermute{.x_RH = x_RH,
                             .row_TK = row_TK,
                             .weight_TK = weight_TK,
                             .out_TH = out,
                             .T = T,
                             .K = K,
                             .R = R,
                             .H = H});
  return out;
}

Tensor unpermute_weight_grad(Stream& stream, const Tensor& dout_TH, const Tensor& x_RH,
                             const Tensor& row_TK) {
  MT_FLOAT("unpermute_weight_grad", x_RH);
  MT_DTYPE("unpermute_weight_grad", row_TK, DType::i32);
  const int64_t T = row_TK.dim(0), K = row_TK.dim(1), R = x_RH.dim(0), H = x_RH.dim(1);
  MT_SHAPE("unpermute_weight_grad", dout_TH, {T, H});
  MT_DTYPE("unpermute_weight_grad", dout_TH, x_RH.dtype());
  Tensor dweight_TK = Tensor::empty(stream, {T, K}, DType::f32);
  enqueue(stream, "unpermute_weight_grad",
          kernels::UnpermuteWeightGrad{.dout_TH = dout_TH,
                                       .x_RH = x_RH,
                                       .row_TK = row_TK,
                                       .dweight_TK = dweight_TK,
                                       .T = T,
                                       .K = K,
                                       .R = R,
                                       .H = H});
  return dweight_TK;
}

}  // namespace mtrain::ops
