// Tokens in the order of their experts, and back (Gale et al. 2023, "MegaBlocks"). A token chooses
// K of E experts. Each choice has a row among those that the experts compute on: experts in turn,
// and an expert's rows in the order of the tokens, so that no result depends on threads. Choice
// (t, k) has the number t K + k. A choice may be dropped: it has no row. R rows are those that are
// computed on, which may leave the last ones out: choices of these are dropped, too.
//
// x and out are both fp32 or both bf16; indices are int32; weights fp32; sums fp32, rounded once.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct ExpertRows {
  ConstSpan expert_TK;  // outside of [0, E): dropped
  Span count_E;         // rows of each expert
  Span row_TK;          // of each choice; -1: dropped
  Span choice_R;        // of each of T K rows; -1 behind the last one
  int64_t T, K, E;      // T K below 2^31
};
// out[row] = weight[choice] x[choice / K]: permute's forward, and unpermute's gradient of x. Rows
// without a choice become 0.
struct Permute {
  ConstSpan x_TH;
  ConstSpan choice_R;
  ConstSpan weight_TK;  // optional: 1
  Span out_RH;
  int64_t T, K, R, H;
};
// out[t] = sum over k, in turn, of weight[t, k] x[row[t, k]]: unpermute's forward, and permute's
// gradient.
struct Unpermute {
  ConstSpan x_RH;
  ConstSpan row_TK;
  ConstSpan weight_TK;  // optional: 1
  Span out_TH;
  int64_t T, K, R, H;
};
// dweight[t, k] = dout[t] . x[row[t, k]]; 0 where dropped.
struct UnpermuteWeightGrad {
  ConstSpan dout_TH, x_RH;  // of one type
  ConstSpan row_TK;
  Span dweight_TK;
  int64_t T, K, R, H;
};

namespace cpu {
void run(const ExpertRows&);
void run(const Permute&);
void run(const Unpermute&);
void run(const UnpermuteWeightGrad&);
}  // namespace cpu
namespace cuda {
void run(const ExpertRows&, CUstream_st*);
void run(const Permute&, CUstream_st*);
void run(const Unpermute&, CUstream_st*);
void run(const UnpermuteWeightGrad&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
