// Device-neutral operations: each checks shapes and dtypes, enqueues one launch on `on`, and
// returns at once. New results are allocated on that stream. Letters: T tokens, H hidden, F ffn, V
// vocabulary, A query heads, G kv heads, D head dim, B sequences, S positions. An absent Tensor
// stands for "none" where a parameter is called optional.
#pragma once
#include <cstdint>

#include "kernels/norm.h"
#include "tensor/tensor.h"

namespace mtrain::ops {

// --- matmul: row-major, fp32 accumulation ---
struct Transpose {
  bool a = false, b = false;
};
// op(a) op(b) (+ bias_N, optional) as a new (M, N) tensor of `out`. `name` appears in profiles and
// traces.
Tensor matmul(Stream& on, const char* name, const Tensor& a, const Tensor& b, Transpose t,
              DType out, const Tensor& bias_N = {});
// c_MN = op(a) op(b), or += where `accumulate` (c then is fp32).
void matmul_into(Stream& on, const char* name, const Tensor& a, const Tensor& b, Transpose t,
                 const Tensor& c_MN, bool accumulate = false);

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
// dx (+ dresidual, optional); accumulates into dw_H and db_H (fp32, db optional).
Tensor norm_backward(Stream& on, const NormWeights& w, const NormResult& forward,
                     const Tensor& dy_TH, const Tensor& dresidual_TH, const Tensor& dw_H,
                     const Tensor& db_H);
// Per-head RMS norm in place on `heads` heads of each token, from element `first` of the token's
// row on. Returns rstd (T * heads).
struct HeadRange {
  int64_t first_head, heads, D;
};
Tensor head_norm(Stream& on, const NormWeights& w, const Tensor& in_TN, const Tensor& out_TN,
                 HeadRange range);
void head_norm_backward(Stream& on, const NormWeights& w, const Tensor& in_TN, const Tensor& rstd,
                        const Tensor& d_TN, HeadRange range, const Tensor& dw_D);  // d_TN in place

// --- rotary embedding, in place on the first `heads` heads of each token ---
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
// qkv_TN: (T, (A + 2 G) D), all query heads, then key heads, then value heads.
AttentionResult attention(Stream& on, const AttentionDims& dims, const Tensor& qkv_TN,
                          const Tensor& cu_seqlens);
Tensor attention_backward(Stream& on, const AttentionDims& dims, const Tensor& qkv_TN,
                          const Tensor& cu_seqlens, const AttentionResult& forward,
                          const Tensor& dout_TN);  // dqkv

// --- MLP activations ---
Tensor swiglu(Stream& on, const Tensor& gate_up_T2F);
// dgate_up; `y_TF` is written with the forward's output again, for the weight gradient that
// follows.
Tensor swiglu_backward(Stream& on, const Tensor& gate_up_T2F, const Tensor& dy_TF,
                       const Tensor& y_TF);
Tensor gelu(Stream& on, const Tensor& x, bool tanh);
Tensor gelu_backward(Stream& on, const Tensor& x, const Tensor& dy, const Tensor& y, bool tanh);

// --- embedding; position_table optional ---
Tensor embedding(Stream& on, const Tensor& id_T, const Tensor& table_VH, const Tensor& position_T,
                 const Tensor& position_table_PH);
void embedding_backward(Stream& on, const Tensor& id_T, const Tensor& dout_TH,
                        const Tensor& dtable_VH);

// --- loss: gradient in place of the logits where write_grad; V is the true vocabulary, logits may
// be padded ---
void cross_entropy(Stream& on, const Tensor& logits_TV, const Tensor& label_T, const Tensor& loss_T,
                   int64_t V, float grad_scale, bool write_grad);

// --- element-wise ---
Tensor add(Stream& on, const Tensor& a, const Tensor& b);
void cast(Stream& on, const Tensor& from, const Tensor& to);
void fill(Stream& on, const Tensor& x, float value);
void scale(Stream& on, const Tensor& x, float factor);
// In place; see kernels/elementwise.h for what decides an element's fate.
void dropout(Stream& on, const Tensor& x, uint64_t key, int64_t first_index, float p);

// --- reductions; `total` is one fp64 element ---
void sum_squares(Stream& on, const Tensor& x, const Tensor& total);
void sum(Stream& on, const Tensor& x, const Tensor& total);
void column_sum(Stream& on, const Tensor& x_TN, const Tensor& out_N);
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
};
// param: bf16 copy of master, optional. A non-finite grad_scale leaves everything as it is.
void adamw(Stream& on, const AdamWHyper& hyper, const Tensor& master, const Tensor& m,
           const Tensor& v, const Tensor& grad, const Tensor& grad_scale, const Tensor& param);

}  // namespace mtrain::ops
