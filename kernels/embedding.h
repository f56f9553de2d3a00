// Token (and learned position) embedding. The backward is deterministic.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct EmbeddingForward {       // out[t] = table[id[t]] (+ position_table[position[t]])
  ConstSpan id_T;               // int32, in [0, V)
  ConstSpan table_VH;           // fp32 or bf16
  ConstSpan position_T;         // int32; with position_table_PH, optional
  ConstSpan position_table_PH;  // of table_VH's dtype
  Span out_TH;                  // fp32 or bf16
  int64_t T, H, V;
};
struct EmbeddingBackward {  // dtable[id[t]] += dout[t], in the order of t
  ConstSpan id_T;
  ConstSpan dout_TH;  // fp32 or bf16
  Span dtable_VH;     // fp32, accumulated into
  int64_t T, H, V;
};

namespace cpu {
void run(const EmbeddingForward&);
void run(const EmbeddingBackward&);
}  // namespace cpu
namespace cuda {
void run(const EmbeddingForward&, CUstream_st*);
void run(const EmbeddingBackward&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
