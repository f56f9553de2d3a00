// Embedding of tokens and, optionally, of learned positions. The backward is deterministic. A table
// may hold a shard of the vocabulary; ids of other shards then have the embedding 0 and get no
// gradient here.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// out[t] = scale table[id[t]] + position_table[position[t]].
struct EmbeddingForward {
  ConstSpan id_T;               // int32, in [0, vocabulary)
  ConstSpan table_VH;           // any float
  ConstSpan position_T;         // int32; optional, goes with position_table_PH
  ConstSpan position_table_PH;  // has table_VH's dtype; never given with a shard
  Span out_TH;                  // any float
  int64_t T, H, V;
  int64_t first_row = 0;   // the table's first row in the vocabulary
  int64_t vocabulary = 0;  // rows of all shards; 0: V
  float scale = 1;
};
// dtable[id[t]] += scale dout[t], in the order of t.
struct EmbeddingBackward {
  ConstSpan id_T;
  ConstSpan dout_TH;  // any float
  Span dtable_VH;     // fp32, accumulated into
  int64_t T, H, V;
  int64_t first_row = 0, vocabulary = 0;  // as in the forward
  float scale = 1;
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
