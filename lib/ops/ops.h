// Device-neutral operations. Each one checks shapes and dtypes, enqueues its work on `stream`, and
// returns immediately. The work is one launch; comments say where a device needs two. New results
// are allocated on that stream.
//
// Letters: T tokens, H hidden, F ffn, V vocabulary, A query heads, G kv heads, D head dim,
// B sequences, S positions. An empty Tensor means "none" for optional parameters. Unless a comment
// says otherwise, tensors are fp32, bf16 or fp16, the tensors of one operation have the same dtype,
// and an output is overwritten. "+=" and "adds to" mark the outputs that accumulate.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/copy_blocks.h"
#include "kernels/norm.h"
#include "ops/operand.h"
#include "tensor/tensor.h"

namespace mtrain::ops {

// --- matmul: matrices are row-major, and sums are fp32 ---
struct Transpose {
  bool a = false, b = false;
};
// Returns op(a) op(b) + bias_N as a new (M, N) tensor of the dtype `out`. The bias is optional; a,
// b and the bias may each be fp32, bf16 or fp16. `name` appears in profiles and traces.
Tensor matmul(Stream& stream, const char* name, const Tensor& a, const Tensor& b, Transpose t,
              DType out, const Tensor& bias_N = {});
// Writes op(a) op(b) + bias_N into c_MN. With `accumulate` it adds to c_MN instead; c_MN is then
// fp32, and there is no bias. `t` describes the matrices: an operand whose memory holds the
// transpose counts as the matrix itself. Quantized operands need memory whose rows run along K;
// kernels/matmul.h lists the sizes that fit. With `fast` the tensor cores keep the sums of their
// GEMM in a shorter format of their own.
void matmul_into(Stream& stream, const char* name, const Operand& a, const Operand& b, Transpose t,
                 const Tensor& c_MN, bool accumulate = false, const Tensor& bias_N = {},
                 bool fast = false);

// matmul_gelu returns x = op(a) op(b) + bias_N and y = gelu(x), in gelu's tanh form. On a GPU the
// GEMM itself computes y, from sums that are not rounded yet; on a CPU a second launch does.
struct GeluResult {
  Tensor x_MN, y_MN;
};
GeluResult matmul_gelu(Stream& stream, const char* name, const Tensor& a, const Tensor& b,
                       Transpose t, const Tensor& bias_N = {});
// matmul_dgelu takes dL/dy = op(a) op(b) for y = gelu(x) and returns dL/dx. It also returns a
// recomputed gelu(x): the y of the forward need not be kept. It makes two launches. On a GPU this
// gelu(x) is computed from the rounded x, unlike the forward's.
struct GeluGradients {
  Tensor dx_MN, y_MN;
};
GeluGradients matmul_dgelu(Stream& stream, const char* name, const Tensor& a, const Tensor& b,
                           Transpose t, const Tensor& x_MN);
// Writes dy^T x into dw_OI, or adds it with `accumulate`; adds the sums of the columns of dy, which
// is then plain, to db_O (optional). Both results are fp32. On a CPU a second launch computes db_O.
void weight_gradient_into(Stream& stream, const char* name, const Operand& dy_TO,
                          const Operand& x_TI, const Tensor& dw_OI, bool accumulate,
                          const Tensor& db_O);

// --- norms ---
struct NormWeights {
  NormKind kind;
  Tensor w_H, b_H;  // b_H: optional
  float eps;
  bool plus_one = false;  // multiplies by 1 + w
};
struct NormResult {
  Tensor sum_TH;          // the norm's input: x, or x + residual if one was given
  Written y_TH;           // plain or quantized
  Tensor rstd_T, mean_T;  // fp32; mean_T only for layer norm
};
NormResult norm(Stream& stream, const NormWeights& w, const Tensor& x_TH,
                const Tensor& residual_TH = {}, const Destination& to = {});
// Returns dL/dx + dresidual_TH (optional), plain, and quantized beside it if `to` asks for it. Adds
// to dw_H and db_H, which are fp32; db_H is optional.
Written norm_backward(Stream& stream, const NormWeights& w, const NormResult& forward,
                      const Tensor& dy_TH, const Tensor& dresidual_TH, const Tensor& dw_H,
                      const Tensor& db_H, const Destination& to = {});
struct HeadRange {
  int64_t first_head, heads, D;  // heads of D elements each, in every token's row
  bool as_one = false;           // one norm over all of these heads, with a weight of heads * D

  int64_t rows() const { return as_one ? 1 : heads; }  // norms of each token
  int64_t width() const { return as_one ? heads * D : D; }
};
// Rows of a norm over heads that are distributed over ranks.
struct SharedRows {
  Tensor sum_T;  // the result of head_norm_sums(), summed over ranks; absent: rows are not shared
  int64_t width = 0;  // elements of a row on all ranks
};
// Set sum_T (fp32) to the sums over a range's heads that head_norm() and head_norm_backward() need:
// of their squares, and of dy w x rstd.
void head_norm_sums(Stream& stream, const Tensor& in_TN, HeadRange range, const Tensor& sum_T);
void head_norm_backward_sums(Stream& stream, const NormWeights& w, const Tensor& in_TN,
                             const Tensor& rstd, const Tensor& d_TN, HeadRange range,
                             const Tensor& sum_T);
// Normalizes each head of the range (RMS norm) from in_TN into the same heads of out_TN, whose
// other columns stay unchanged. Returns rstd (fp32, T * range.rows()).
Tensor head_norm(Stream& stream, const NormWeights& w, const Tensor& in_TN, const Tensor& out_TN,
                 HeadRange range, const SharedRows& shared = {});
// Replaces the gradient of head_norm's output by the gradient of its input, in the range's heads of
// d_TN, which is plain. Adds to dw (fp32). Enters the maximum of these heads into d_TN.amax, if it
// is present.
void head_norm_backward(Stream& stream, const NormWeights& w, const Tensor& in_TN,
                        const Tensor& rstd, const Written& d_TN, HeadRange range,
                        const Tensor& dw_D, const SharedRows& shared = {});

// --- rotary embedding ---
// Rotates the first `heads` heads of each token in place: the first 2 R of a head's D elements.
// `backward` rotates by the negative angle. The tables are fp32, the positions int32. x is plain.
// `last`: no kernel changes these heads later, so that their maximum is entered into x_TN.amax, if
// it is present.
void rope(Stream& stream, const Written& x_TN, const Tensor& cos_PR, const Tensor& sin_PR,
          const Tensor& position_T, int64_t heads, int64_t D, bool backward, bool last = true);

// --- attention ---
struct AttentionDims {
  int64_t B, S, A, G, D;
  bool causal = true;
  int64_t window = 0;  // 0: none
  float scale;
  float cap = 0;  // scores s become cap tanh(s / cap); 0: no cap
};
struct AttentionResult {
  Tensor out_TN;         // (T, A * D)
  Tensor lse;            // fp32 (B, A, S)
  Written written = {};  // out_TN in all forms; only of attention() with a destination
};
// qkv_TN is (T, (A + 2 G) D): all query heads, then the key heads, then the value heads. The
// optional cu_seqlens (int32) holds the boundaries of packed documents, from 0 to S; it needs B
// = 1.
AttentionResult attention(Stream& stream, const AttentionDims& dims, const Tensor& qkv_TN,
                          const Tensor& cu_seqlens, const Destination& to = {});
// Returns dL/dqkv, plain. `qk_last`: no kernel changes the gradients of q and k later; otherwise
// that kernel enters their maximum. Where cuDNN may compute attention, both operations ignore `to`.
Written attention_backward(Stream& stream, const AttentionDims& dims, const Tensor& qkv_TN,
                           const Tensor& cu_seqlens, const AttentionResult& forward,
                           const Tensor& dout_TN, const Destination& to = {}, bool qk_last = true);

// --- attention to a block of keys, for context parallelism; kernels/attention.h has the math ---
struct Rows {
  int64_t begin, end;
};
// Document i has the rows [begin[i], end[i]) (int32). Rows that belong to no document take no part.
struct Documents {
  Tensor begin, end;
};
// The queries at the positions `q` attend to the keys at the positions `kv`. Callers pass full
// tensors; rows outside of these positions are neither read nor written. With `causal`, the last of
// these queries attends to the last of these keys, and the same holds within each document.
struct AttentionBlock {
  int64_t B;
  Rows q, kv;
  int64_t A, G, D;
  bool causal = false;
  float scale;
  // Optional; they need B = 1. Their rows count from q.begin and kv.begin.
  Documents q_documents, kv_documents;
  int64_t window = 0;    // 0: none; else a query attends only to the last `window` of its keys
  int64_t out_head = 0;  // the A heads of out and dout begin with this head of their rows
  float cap = 0;         // as in AttentionDims
};
// Some heads of every token's row, starting at head `first`.
struct Heads {
  Tensor x_TN;
  int64_t first = 0;
};
// Writes the rows block.q of into.out_TN (fp32 or the operands' dtype) and of into.lse (B, A,
// positions). A query that attends to no key of the block gets out 0 and lse -inf.
void attention_block(Stream& stream, const AttentionBlock& block, const Heads& q, const Heads& k,
                     const Heads& v, const AttentionResult& into);
// Merges the result of a block into that of the blocks before it. The block's positions are the
// positions of `into` that start at `first`. into.out_TN is fp32; the caller casts it once, when
// all blocks are merged.
void attention_merge(Stream& stream, const AttentionResult& block, const AttentionResult& into,
                     int64_t first);
struct AttentionGrads {
  Heads dq, dk, dv;      // fp32 or the operands' dtype
  bool add_dq, add_dkv;  // add to dq, and to dk and dv, instead of overwriting their rows
};
// Computes the block's share of the gradients. `merged` is the result of all blocks, cast to the
// operands' dtype.
void attention_block_backward(Stream& stream, const AttentionBlock& block, const Heads& q,
                              const Heads& k, const Heads& v, const AttentionResult& merged,
                              const Tensor& dout_TN, const AttentionGrads& grads);

// --- attention to a cache of keys and values, for generation ---
struct DecodeDims {
  int64_t A, G, D;
  int64_t window = 0;  // 0: none
  float scale;
  float cap = 0;  // as in AttentionDims
};
// Returns (T, A * D). The queries of row t of qkv_TN attend to the rows [start_T[t], end_T[t]) of
// the cache (int32), or to the last `window` of them. The row's keys and values are not read.
// start_T[t] is the row of its sequence's position 0. A row of the cache, of 2 G D elements, has
// its key heads and then its value heads.
Tensor attention_decode(Stream& stream, const DecodeDims& dims, const Tensor& qkv_TN,
                        const Tensor& cache_RN, const Tensor& start_T, const Tensor& end_T);

// --- MLP activations ---
using kernels::GateFunction;
// SwiGLU, or GEGLU with another gate function. The result is plain or quantized.
Written swiglu(Stream& stream, const Tensor& gate_up_T2F, const Destination& to = {},
               GateFunction gate = GateFunction::silu);
struct ActivationGradient {
  Written dx;  // plain or quantized
  Written y;   // the forward's output, if it is recomputed
};
// Returns dL/dgate_up. With `again`, recomputes the forward's output for that destination; a plain
// output overwrites dy_TF.
ActivationGradient swiglu_backward(Stream& stream, const Tensor& gate_up_T2F, const Tensor& dy_TF,
                                   const Destination& to = {}, const Destination* again = nullptr,
                                   GateFunction gate = GateFunction::silu);
// gelu's kernels only find maxima: they ignore a destination that quantizes.
Written gelu(Stream& stream, const Tensor& x, bool tanh, const Destination& to = {});
// Returns dL/dx. Writes the forward's output into `y` (optional), which may be dy.
Written gelu_backward(Stream& stream, const Tensor& x, const Tensor& dy, const Tensor& y, bool tanh,
                      const Destination& to = {});

// --- embedding ---
// The rows that a table holds of a vocabulary that is distributed over ranks; by default all of
// them.
struct VocabularyShard {
  int64_t first_row = 0;
  int64_t vocabulary = 0;  // rows of all ranks, including padding; 0: as many as the table has
};
// Returns scale table[id] + position_table[position]. Ids and positions are int32; the position
// table is optional. Ids of other shards give 0. A shard takes no position table, since every rank
// would add its rows.
Tensor embedding(Stream& stream, const Tensor& id_T, const Tensor& table_VH,
                 const Tensor& position_T, const Tensor& position_table_PH,
                 VocabularyShard shard = {}, float scale = 1);
// Adds `scale` times each token's gradient to its row of dtable_VH (fp32).
void embedding_backward(Stream& stream, const Tensor& id_T, const Tensor& dout_TH,
                        const Tensor& dtable_VH, VocabularyShard shard = {}, float scale = 1);

// --- loss ---
// Writes the loss of each token (fp32) and, with `write_grad`, replaces the logits by their
// gradient. V is the true vocabulary; padding columns may follow it. Labels are int32; a negative
// one masks its token. grad_scale_1 (one element, optional) replaces grad_scale and is read when
// the launch runs. With a logit_cap c above 0 the loss is that of c tanh(logits / c).
void cross_entropy(Stream& stream, const Tensor& logits_TV, const Tensor& label_T,
                   const Tensor& loss_T, int64_t V, float grad_scale, bool write_grad,
                   const Tensor& grad_scale_1 = {}, float logit_cap = 0);
// The two functions below compute the loss over a vocabulary that is distributed over P ranks. A
// rank's logits begin with the columns [first, first + V) of the true vocabulary; padding follows.
// V is 0 on a rank that has only padding.
struct VocabularyColumns {
  int64_t first, V, vocabulary;
};
// Returns three numbers for each token, (T, 3) fp32, to be gathered over the ranks in any order.
Tensor cross_entropy_sums(Stream& stream, const Tensor& logits_TV, const Tensor& label_T,
                          VocabularyColumns here, float logit_cap = 0);
// Takes the gathered numbers of all ranks. Writes the same loss on every rank, and the gradient of
// this rank's own logits.
void cross_entropy_from_sums(Stream& stream, const Tensor& logits_TV, const Tensor& label_T,
                             const Tensor& sums_PT3, const Tensor& loss_T, VocabularyColumns here,
                             float grad_scale, bool write_grad, float logit_cap = 0);

// --- copies of rectangles ---
// Copies rectangles from one matrix to another of the same dtype; elements that no block covers
// stay unchanged. ops/blocks.h makes the lists that context parallelism needs.
using kernels::CopyBlock;
void copy_blocks(Stream& stream, const Tensor& from_TN, const Tensor& to_TN,
                 std::vector<CopyBlock> blocks);

// --- element-wise ---
Tensor add(Stream& stream, const Tensor& a, const Tensor& b);
void add_into(Stream& stream, const Tensor& x, const Tensor& sum);  // sum += x; dtypes may differ
void cast(Stream& stream, const Tensor& from, const Tensor& to);
// Returns x itself if it already has this dtype, else a cast copy.
Tensor in_dtype(Stream& stream, const Tensor& x, DType dtype,
                device::MemoryCategory category = device::MemoryCategory::activations);
void scale(Stream& stream, const Tensor& x, float factor);  // x *= factor
void soft_cap(Stream& stream, const Tensor& x, float cap);  // x = cap tanh(x / cap)
// Sets all elements of x; if `value` is 0, x may have any dtype.
void fill(Stream& stream, const Tensor& x, float value);
// Writes `std` times normal numbers into x (fp32): element i is number first_index + i of the
// random stream `key` (base/rng.h).
void fill_normal(Stream& stream, const Tensor& x, uint64_t key, int64_t first_index, float std);
// Drops elements of x with probability p, in place; kernels/elementwise.h defines which elements a
// key drops. key_1 (int64, one element, optional) replaces `key` and is read when the launch runs.
void dropout(Stream& stream, const Tensor& x, uint64_t key, int64_t first_index, float p,
             const Tensor& key_1 = {});

// --- reductions ---
// The first two add to `total`, one fp64 element; column_sum adds to out_N (fp32).
void sum_squares(Stream& stream, const Tensor& x, const Tensor& total);
void sum(Stream& stream, const Tensor& x, const Tensor& total);
void column_sum(Stream& stream, const Tensor& x_TN, const Tensor& out_N);
// Returns the index of the first NaN or infinity, or -1, as one int64 element.
Tensor first_non_finite(Stream& stream, const Tensor& x);
struct Clip {
  Tensor norm, scale;  // fp32, one element each
};
// Returns the norm and the factor that clips it to max_norm, as kernels::ClipScale defines them.
// The factor is NaN if the norm or `loss` (fp64, one element, optional) is not finite.
Clip clip_scale(Stream& stream, const Tensor& sum_squares, const Tensor& loss, float max_norm,
                double unscale = 1);

// --- optimizer ---
struct AdamWHyper {
  float lr, beta1, beta2, eps, weight_decay;
  int64_t step;
  // The rounding of param if there is no master, and of bf16 moments.
  kernels::AdamWRounding rounding = {};
  bool decoupled_decay = true;  // false: weight_decay * weight is added to the gradient
};
// The moments m and v are both fp32 or both bf16.
// Updates `master` and writes its bf16 or fp16 copy into `param`, which is optional. Without a
// master it updates `param` itself. A grad_scale that is not finite leaves everything unchanged.
void adamw(Stream& stream, const AdamWHyper& hyper, const Tensor& master, const Tensor& m,
           const Tensor& v, const Tensor& grad, const Tensor& grad_scale, const Tensor& param);

}  // namespace mtrain::ops
