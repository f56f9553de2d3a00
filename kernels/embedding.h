// Token (and learned position) embedding. The backward is deterministic. A table may be a shard of
// the vocabulary's: ids of other rows then embed to 0 and have no gradient here.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct EmbeddingForward {       // out[t] = table[id[t]] (+ position_table[position[t]])
  ConstSpan id_T;               // int32, in [0, vocabulary)
  ConstSpan table_VH;           // fp32 or bf16
  ConstSpan position_T;         // int32; with position_table_PH, optional
  ConstSpan position_table_PH;  // of table_VH's dtype; not with a shard
  Span out_TH;                  // fp32 or bf16
  int64_t T, H, V;
  int64_t first_row = 0;   // of the table in the vocabulary
  int64_t vocabulary = 0;  // 0: V
};
struct EmbeddingBackward {  // dtable[id[t]] += dout[t], in the order of t
  ConstSpan id_T;
  ConstSpan dout_TH;  // fp32 or bf16
  Span dtable_VH;     // fp32, accumulated into
  int64_t T, H, V;
  int64_t first_row = 0, vocabulary = 0;  // as in the forward
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
