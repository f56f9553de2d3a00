// Element-wise operations, all memory-bound.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// y = a + b; each may be fp32, bf16 or fp16, but bf16 and fp16 cannot be mixed; y may be a or b.
struct Add {
  ConstSpan a, b;
  Span y;
};
// Adds row_N to each row of y (M, N); the types are as for Add.
struct AddRow {
  ConstSpan row_N;
  Span y_MN;
  int64_t M, N;
};
// y = x in y's dtype: between fp32, bf16 and fp16, or a copy.
struct Cast {
  ConstSpan x;
  Span y;
};
// y *= factor.
struct Scale {
  Span y;
  float factor;
};
// y = cap tanh(y / cap).
struct SoftCap {
  Span y;
  float cap;  // above 0
};
struct Fill {
  Span y;  // any dtype if value is 0
  float value = 0;
};
// y = normal numbers of standard deviation std: element i is number first_index + i of `key`
// (base/rng.h).
struct FillNormal {
  Span y;  // fp32
  uint64_t key;
  int64_t first_index = 0;
  float std;
};
// y = x / (1 - p) if an element is kept, else 0. Element i of the buffer is global element n =
// first_index + i. It is kept if word n % 4 of Philox block n / 4 of `key` (base/rng.h) is at least
// p * 2^32. Therefore every backend and every layout drops the same elements. The backward is the
// same operation on dy.
struct Dropout {
  ConstSpan x;
  Span y;  // may be x
  uint64_t key;
  int64_t first_index = 0;
  float p;
  ConstSpan key_in_memory = {};  // optional, one int64: read at run time, replaces `key`
};

namespace cpu {
void run(const Add&);
void run(const AddRow&);
void run(const Cast&);
void run(const Scale&);
void run(const SoftCap&);
void run(const Fill&);
void run(const FillNormal&);
void run(const Dropout&);
}  // namespace cpu
namespace cuda {
void run(const Add&, CUstream_st*);
void run(const AddRow&, CUstream_st*);
void run(const Cast&, CUstream_st*);
void run(const Scale&, CUstream_st*);
void run(const SoftCap&, CUstream_st*);
void run(const Fill&, CUstream_st*);
void run(const FillNormal&, CUstream_st*);
void run(const Dropout&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
