// Rotary position embedding (Su et al. 2021) in the half-split convention: lane i pairs with lane i
// + R. The first 2 R elements of a head are rotated; the others stay unchanged.
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
  bool backward = false;  // rotates by the negative angle
  Span amax = {};         // optional, fp32, one element: becomes max(amax, largest finite |x|)
};

namespace cpu {
void run(const Rope&);
}
namespace cuda {
void run(const Rope&, CUstream_st*);
}

}  // namespace mtrain::kernels
