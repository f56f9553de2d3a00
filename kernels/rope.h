// Rotary position embedding (Su et al. 2021). 2 R elements of a head are rotated, from `first` on;
// the others stay unchanged. Lane i consists of the rotated elements i and i + R, or of 2 i and
// 2 i + 1 if they are interleaved.
#pragma once
#include "base/span.h"

struct CUstream_st;

namespace mtrain::kernels {

// Rotates x in place.
struct Rope {
  Span x;  // any float (T, heads, D), tokens token_stride apart: q and k heads of a fused qkv
  ConstSpan cos_PR, sin_PR;  // fp32 (positions, R): the angles of a position, already scaled
  ConstSpan position_T;      // int32, in [0, positions)
  int64_t T, heads, D, R, token_stride;
  bool backward = false;     // rotates by the negative angle
  int64_t first = 0;         // on a GPU other than 0 only with interleaved elements
  bool interleaved = false;  // on a GPU without amax
  Span amax = {};            // optional, fp32, one element: becomes max(amax, largest finite |x|)
};

namespace cpu {
void run(const Rope&);
}
namespace cuda {
void run(const Rope&, CUstream_st*);
}

}  // namespace mtrain::kernels
