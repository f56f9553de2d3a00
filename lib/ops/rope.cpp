#include "ops/rope.h"

#include "kernels/rope.h"
#include "ops/enqueue.h"

MT_KERNEL(Rope)

namespace mtrain::ops {

namespace {
void enqueue_rope(Stream& stream, const Tensor& x_TN, const Tensor& amax, const Tensor& cos_PR,
                  const Tensor& sin_PR, const Tensor& position_T, int64_t heads, int64_t D,
                  bool backward, bool interleaved) {
  const int64_t T = x_TN.dim(0), P = cos_PR.dim(0), R = cos_PR.dim(1);
  MT_SHAPE("rope", position_T, {T});
  MT_SHAPE("rope", sin_PR, {P, R});
  MT_CHECK(R > 0 && 2 * R <= D, "rope: {} pairs of lanes in heads of {}", R, D);
  MT_FLOAT("rope", x_TN);
  MT_DTYPE("rope", cos_PR, DType::f32);
  MT_DTYPE("rope", sin_PR, DType::f32);
  MT_DTYPE("rope", position_T, DType::i32);
  MT_CHECK(heads * D <= x_TN.dim(1), "rope: {} heads of {} in rows of {}", heads, D, x_TN.dim(1));
  const kernels::Rope args{.x = x_TN,
                           .cos_PR = cos_PR,
                           .sin_PR = sin_PR,
                           .position_T = position_T,
                           .T = T,
                           .heads = heads,
                           .D = D,
                           .R = R,
                           .token_stride = x_TN.dim(1),
                           .backward = backward,
                           .first = interleaved ? D - 2 * R : 0,
                           .interleaved = interleaved,
                           .amax = amax};
  enqueue(stream, backward ? "rope_bwd" : "rope_fwd", args);
}
}  // namespace

void rope(Stream& stream, const Written& written, const Tensor& cos_PR, const Tensor& sin_PR,
          const Tensor& position_T, int64_t heads, int64_t D, bool backward, bool last) {
  enqueue_rope(stream, written.plain, last ? written.amax : Tensor(), cos_PR, sin_PR, position_T,
               heads, D, backward, false);
}

void rope_interleaved(Stream& stream, const Tensor& x_TN, const Tensor& cos_PR,
                      const Tensor& sin_PR, const Tensor& position_T, int64_t heads, int64_t D,
                      bool backward) {
  enqueue_rope(stream, x_TN, {}, cos_PR, sin_PR, position_T, heads, D, backward, true);
}

}  // namespace mtrain::ops
