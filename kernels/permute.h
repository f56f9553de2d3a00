// Sorts tokens by their experts, and back (Gale et al. 2023, "MegaBlocks"). Each of T tokens
// chooses K of E experts; choice (t, k) has the number t K + k. Each choice gets a row of the
// experts' input: the rows of expert 0 come first, then those of expert 1, and so on. An expert's
// rows keep the order of the tokens; therefore no result depends on threads. A dropped choice has
// no row. The experts compute on the first R rows; choices whose rows come after them also count as
// dropped.
//
// x and out have one float type; indices are int32; weights and sums are fp32, and a sum is rounded
// once.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct ExpertRows {
  ConstSpan expert_TK;  // a number outside of [begin, begin + E) drops the choice
  Span count_E;         // number of rows of each expert
  Span row_TK;          // row of each choice; -1: dropped
  Span choice_R;        // choice of each of T K rows, or of E capacity; -1: the row has none
  int64_t T, K, E;      // the number of rows must be below 2^31
  Span first_E1 = {};   // optional: expert begin + e has the rows [first[e], first[e + 1])
  int64_t begin = 0;    // the first of the E experts
  // Above 0: every expert has this many rows, and its last rows may have no choice. Choices beyond
  // the capacity are dropped.
  int64_t capacity = 0;
};
// out[row] = weight[choice] x[choice / K]: the forward of permute, and unpermute's gradient of x.
// Rows without a choice become 0.
struct Permute {
  ConstSpan x_TH;
  ConstSpan choice_R;
  ConstSpan weight_TK;  // optional; without it every weight is 1
  Span out_RH;
  int64_t T, K, R, H;
};
// out[t] = sum over k, in increasing order, of weight[t, k] x[row[t, k]]: the forward of unpermute,
// and permute's gradient of x.
struct Unpermute {
  ConstSpan x_RH;
  ConstSpan row_TK;
  ConstSpan weight_TK;  // optional; without it every weight is 1
  Span out_TH;
  int64_t T, K, R, H;
};
// dweight[t, k] = dout[t] . x[row[t, k]], or 0 for a dropped choice.
struct UnpermuteWeightGrad {
  ConstSpan dout_TH, x_RH;  // have the same dtype
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
