// Device-neutral operations: each checks shapes and dtypes, enqueues one launch on `on`, and
// returns at once. New results are allocated on that stream. Letters: T tokens, H hidden, F ffn, V
// vocabulary, A query heads, G kv heads, D head dim, B sequences, S positions. An absent Tensor
// stands for "none" where a parameter is called optional. Unless said otherwise tensors are fp32 or
// bf16, all of one operation the same, and what is written is overwritten; "+=" and "adds" say
// where it is added to.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/adamw.h"
#include "kernels/copy_blocks.h"
#include "kernels/norm.h"
#include "tensor/tensor.h"

namespace mtrain::ops {

// --- matmul: row-major, fp32 accumulation ---
struct Transpose {
  bool a = false, b = false;
};
// op(a) op(b) (+ bias_N, optional) as a new (M, N) tensor of `out`; a, b and bias each fp32 or
// bf16. `name` appears in profiles and traces.
Tensor matmul(Stream& on, const char* name, const Tensor& a, const Tensor& b, Transpose t,
              DType out, const Tensor& bias_N = {});
// c_MN = op(a) op(b) (+ bias_N, optional), or += where `accumulate` (c then is fp32, without bias).
void matmul_into(Stream& on, const char* name, const Tensor& a, const Tensor& b, Transpose t,
                 const Tensor& c_MN, bool accumulate = false, const Tensor& bias_N = {});

// gelu, in the tanh form, behind a product; on a GPU within it, from the sums before they are
// rounded.
struct GeluResult {
  Tensor x_MN, y_MN;  // y = gelu(x)
};
GeluResult matmul_gelu(Stream& on, const char* name, const Tensor& a, const Tensor& b, Transpose t,
                       const Tensor& bias_N = {});
struct GeluGradients {
  Tensor dx_MN, y_MN;  // y: gelu(x) again; on a GPU of the rounded x, unlike the forward's
};
// For dy = op(a) op(b).
GeluGradients matmul_dgelu(Stream& on, const char* name, const Tensor& a, const Tensor& b,
                           Transpose t, const Tensor& x_MN);
// dw_OI = dy^T x, or += where `accumulate`; db_O += the sums of dy's columns, optional. fp32.
void weight_gradient_into(Stream& on, const char* name, const Tensor& dy_TO, const Tensor& x_TI,
                          const Tensor& dw_OI, bool accumulate, const Tensor& db_O);

// --- 8 bits, of a scale each: x ~ data * inverse. kernels/fp8.h ---
struct Float8Scale {
  Tensor scale, inverse;  // fp32, one element each
};
struct Float8Tensor {
  Tensor data;     // f8e4m3 or f8e5m2
  Tensor inverse;  // fp32, one element
};
// The scale under which the largest of x is the type's largest over 2^margin.
Float8Scale current_scale(Stream& on, const Tensor& x, DType type, int margin);
void current_scale_into(Stream& on, const Tensor& x, DType type, int margin,
                        const Float8Scale& scale);
// amax (fp32, one element, optional) becomes x's where that is larger.
Float8Tensor quantize(Stream& on, const Tensor& x_TN, DType type, const Float8Scale& scale,
                      const Tensor& amax = {});
// (N, T), T rounded up to a multiple of kernels::kFloat8Multiple by zeros.
Float8Tensor quantize_transposed(Stream& on, const Tensor& x_TN, DType type,
                                 const Float8Scale& scale, const Tensor& amax = {});
// Both, of one read of x.
struct Float8Pair {
  Float8Tensor rows, transposed;
};
Float8Pair quantize_both(Stream& on, const Tensor& x_TN, DType type, const Float8Scale& scale,
                         const Tensor& amax = {});
// Into either or both of y_TN (T, N) and y_NT (N, T rounded up as above); x is read once.
void quantize_into(Stream& on, const Tensor& x_TN, const Float8Scale& scale, const Tensor& y_TN,
                   const Tensor& y_NT, const Tensor& amax = {});
// Of the next step, for C tensors: kernels/fp8.h.
struct DelayedScales {
  Tensor amax_C, history_CL, scale_C, inverse_C;
};
void update_scales(Stream& on, const DelayedScales& of, int64_t place, bool most_recent, DType type,
                   int margin);
// c_MN = a b^T (+ bias_N, optional), or += where `accumulate`: see kernels/matmul.h for what fits.
void matmul_float8_into(Stream& on, const char* name, const Float8Tensor& a_MK,
                        const Float8Tensor& b_NK, const Tensor& c_MN, bool accumulate, bool fast,
                        const Tensor& bias_N = {});

// --- norms ---
using kernels::NormKind;
struct NormWeights {
  NormKind kind;
  Tensor w_H, b_H;  // b_H: optional
  float eps;
};
struct NormResult {
  Tensor sum_TH;  // the norm's input: x, or x + residual where one was given
  Tensor y_TH;
  Tensor rstd_T, mean_T;  // fp32; mean_T only for layer norm
};
NormResult norm(Stream& on, const NormWeights& w, const Tensor& x_TH,
                const Tensor& residual_TH = {});
// dx (+ dresidual, optional); adds to dw_H and db_H (fp32, db optional).
Tensor norm_backward(Stream& on, const NormWeights& w, const NormResult& forward,
                     const Tensor& dy_TH, const Tensor& dresidual_TH, const Tensor& dw_H,
                     const Tensor& db_H);
struct HeadRange {
  int64_t first_head, heads, D;  // heads of D elements each, in every token's row
};
// RMS norm of each head of the range, from in_TN to the same heads of out_TN; other columns of
// out_TN stay. Returns rstd (fp32, T * heads).
Tensor head_norm(Stream& on, const NormWeights& w, const Tensor& in_TN, const Tensor& out_TN,
                 HeadRange range);
// The gradient of head_norm's input in place of that of its output, in the range's heads of d_TN;
// adds to dw_D (fp32).
void head_norm_backward(Stream& on, const NormWeights& w, const Tensor& in_TN, const Tensor& rstd,
                        const Tensor& d_TN, HeadRange range, const Tensor& dw_D);

// --- rotary embedding, in place on the first `heads` heads of each token; tables fp32, positions
// int32 ---
void rope(Stream& on, const Tensor& x_TN, const Tensor& cos_PR, const Tensor& sin_PR,
          const Tensor& position_T, int64_t heads, int64_t D, bool backward);

// --- attention ---
struct AttentionDims {
  int64_t B, S, A, G, D;
  bool causal = true;
  int64_t window = 0;  // 0: none
  float scale;
};
struct AttentionResult {
  Tensor out_TN;  // (T, A * D)
  Tensor lse;     // fp32 (B, A, S)
};
// qkv_TN: (T, (A + 2 G) D), all query heads, then key heads, then value heads. cu_seqlens (int32,
// optional): where packed documents begin and end, from 0 to S; needs B = 1.
AttentionResult attention(Stream& on, const AttentionDims& dims, const Tensor& qkv_TN,
                          const Tensor& cu_seqlens);
Tensor attention_backward(Stream& on, const AttentionDims& dims, const Tensor& qkv_TN,
                          const Tensor& cu_seqlens, const AttentionResult& forward,
                          const Tensor& dout_TN);  // dqkv

// --- attention to a block of keys (context parallelism): kernels/attention.h ---
struct Rows {
  int64_t begin, end;
};
struct Documents {
  Tensor begin, end;  // int32: rows of each document; other rows take no part
};
// The positions `q` of the query-side tensors against the positions `kv` of the key-side ones: all
// tensors are passed whole, and rows outside are neither read nor written. Causal: the last of
// these queries sees the last of these keys, and so in each document.
struct AttentionBlock {
  int64_t B;
  Rows q, kv;
  int64_t A, G, D;
  bool causal = false;
  float scale;
  Documents q_documents, kv_documents;  // optional, B = 1; rows counted from q.begin and kv.begin
  int64_t window = 0;                   // 0: none; counted from the last key that a query may see
  int64_t out_head = 0;                 // the first of the A heads in out and dout
};
// Consecutive heads in every token's row, from `first` on.
struct Heads {
  Tensor x_TN;
  int64_t first = 0;
};
// Writes the rows q of out_TN (fp32 or the operands' type) and lse (B, A, positions). Queries that
// see no key of the block get out 0 and lse -inf.
void attention_block(Stream& on, const AttentionBlock& block, const Heads& q, const Heads& k,
                     const Heads& v, const AttentionResult& into);
// Folds a block's result, of some positions, into that of earlier blocks, of which these are the
// positions from `first` on; out_TN of the latter is fp32, and is cast once all blocks are merged.
void attention_merge(Stream& on, const AttentionResult& block, const AttentionResult& into,
                     int64_t first);
struct AttentionGrads {
  Heads dq, dk, dv;      // fp32 or the operands' type
  bool add_dq, add_dkv;  // or the rows q of dq, kv of dk and dv are overwritten
};
// The block's share of the gradients, given the merged and cast result of all blocks.
void attention_block_backward(Stream& on, const AttentionBlock& block, const Heads& q,
                              const Heads& k, const Heads& v, const AttentionResult& merged,
                              const Tensor& dout_TN, const AttentionGrads& grads);

// --- MLP activations ---
Tensor swiglu(Stream& on, const Tensor& gate_up_T2F);
// dgate_up; `y_TF` (optional) is written with the forward's output again, for the weight gradient
// that follows; it may be dy_TF.
Tensor swiglu_backward(Stream& on, const Tensor& gate_up_T2F, const Tensor& dy_TF,
                       const Tensor& y_TF);
Tensor gelu(Stream& on, const Tensor& x, bool tanh);
// dx; `y` as in swiglu_backward.
Tensor gelu_backward(Stream& on, const Tensor& x, const Tensor& dy, const Tensor& y, bool tanh);

// --- embedding; ids and positions int32, position_table optional ---
// The rows that a table holds of a vocabulary spread over ranks; by default all.
struct VocabularyShard {
  int64_t first_row = 0;
  int64_t vocabulary = 0;  // padding rows included; 0: the table's rows
};
// Ids of other shards embed to 0; a shard takes no position_table, since every rank would add it.
Tensor embedding(Stream& on, const Tensor& id_T, const Tensor& table_VH, const Tensor& position_T,
                 const Tensor& position_table_PH, VocabularyShard shard = {});
// Adds to dtable_VH (fp32).
void embedding_backward(Stream& on, const Tensor& id_T, const Tensor& dout_TH,
                        const Tensor& dtable_VH, VocabularyShard shard = {});

// --- loss (fp32): gradient in place of the logits where write_grad; V is the true vocabulary,
// logits may be padded; labels int32, negative: masked. grad_scale_1 (one element, optional): read
// when it runs, instead of grad_scale ---
void cross_entropy(Stream& on, const Tensor& logits_TV, const Tensor& label_T, const Tensor& loss_T,
                   int64_t V, float grad_scale, bool write_grad, const Tensor& grad_scale_1 = {});
// The same over a vocabulary spread over P ranks: a rank's logits begin with the columns
// [first, first + V) of the true vocabulary, V may be 0, and the rest is padding.
struct VocabularyColumns {
  int64_t first, V, vocabulary;
};
// (T, 3) fp32, to be gathered over the ranks in any order.
Tensor cross_entropy_sums(Stream& on, const Tensor& logits_TV, const Tensor& label_T,
                          VocabularyColumns here);
// sums_PT3: what the ranks had. Every rank gets the same loss, and the gradient of its own logits.
void cross_entropy_from_sums(Stream& on, const Tensor& logits_TV, const Tensor& label_T,
                             const Tensor& sums_PT3, const Tensor& loss_T, VocabularyColumns here,
                             float grad_scale, bool write_grad);

// --- rectangles from one matrix to another of the same type; what no block covers stays.
// ops/blocks.h has the lists that context parallelism needs ---
using kernels::CopyBlock;
void copy_blocks(Stream& on, const Tensor& from_TN, const Tensor& to_TN,
                 std::vector<CopyBlock> blocks);

// --- element-wise ---
Tensor add(Stream& on, const Tensor& a, const Tensor& b);
void add_into(Stream& on, const Tensor& x, const Tensor& sum);  // sum += x; dtypes may differ
void cast(Stream& on, const Tensor& from, const Tensor& to);
void fill(Stream& on, const Tensor& x, float value);  // fp64 too
// Element i is number first_index + i of the stream `key` (base/rng.h), times std; fp32.
void fill_normal(Stream& on, const Tensor& x, uint64_t key, int64_t first_index, float std);
// In place; see kernels/elementwise.h for what decides an element's fate.
// `key_1` (int64, one element, optional): the key, read when it runs.
void dropout(Stream& on, const Tensor& x, uint64_t key, int64_t first_index, float p,
             const Tensor& key_1 = {});

// --- reductions; `total` is one fp64 element; all but first_non_finite and clip_scale add ---
void sum_squares(Stream& on, const Tensor& x, const Tensor& total);
void sum(Stream& on, const Tensor& x, const Tensor& total);
void column_sum(Stream& on, const Tensor& x_TN, const Tensor& out_N);  // out fp32
Tensor first_non_finite(Stream& on, const Tensor& x);  // int64, one element: index or -1
struct Clip {
  Tensor norm, scale;  // fp32, one element each
};
// loss (fp64, one element, optional): where it or the norm is not finite, scale is NaN.
Clip clip_scale(Stream& on, const Tensor& sum_squares, const Tensor& loss, float max_norm);

// --- optimizer ---
struct AdamWHyper {
  float lr, beta1, beta2, eps, weight_decay;
  int64_t step;
  kernels::AdamWRounding rounding = {};  // of param, where there is no master
};
// param: bf16 copy of master, optional; without master, itself what is updated. A non-finite
// grad_scale leaves everything as it is.
void adamw(Stream& on, const AdamWHyper& hyper, const Tensor& master, const Tensor& m,
           const Tensor& v, const Tensor& grad, const Tensor& grad_scale, const Tensor& param);

}  // namespace mtrain::ops
