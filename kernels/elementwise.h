// Memory-bound odds and ends.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

struct Add {  // y = a + b, each fp32 or bf16; y may be a or b
  ConstSpan a, b;
  Span y;
};
struct Cast {  // y = x in y's type (fp32 <-> bf16, or a copy)
  ConstSpan x;
  Span y;
};
struct Fill {  // y = value
  Span y;
  float value = 0;
};
// Normal numbers of deviation std: element i is number first_index + i of the stream `key`.
struct FillNormal {
  Span y;  // fp32
  uint64_t key;
  int64_t first_index = 0;
  float std;
};
// y = x / (1 - p) where kept, else 0. Element i of the buffer is global element first_index + i of
// the stream `key`, and its fate is a function of those two alone, so that every layout drops the
// same elements. The backward is the same on dy. Element i is kept where word i % 4 of Philox block
// i / 4 of `key` (base/rng.h) is at least p * 2^32, on every backend.
struct Dropout {
  ConstSpan x;
  Span y;  // may be x
  uint64_t key;
  int64_t first_index = 0;
  float p;
  ConstSpan key_in_memory = {};  // optional, one int64: read when it runs, instead of `key`
};

namespace cpu {
void run(const Add&);
void run(const Cast&);
void run(const Fill&);
void run(const FillNormal&);
void run(const Dropout&);
}  // namespace cpu
namespace cuda {
void run(const Add&, CUstream_st*);
void run(const Cast&, CUstream_st*);
void run(const Fill&, CUstream_st*);
void run(const FillNormal&, CUstream_st*);
void run(const Dropout&, CUstream_st*);
}  // namespace cuda

}  // namespace mtrain::kernels
