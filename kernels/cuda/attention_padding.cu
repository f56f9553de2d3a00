#include "kernels/cuda/device/attention_padding.h"

#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

template <class T>
__global__ void copy_head_elements(const T* from, int64_t from_stride, int64_t D, T* to,
                                   int64_t to_stride, int64_t to_D, int64_t rows, int64_t heads) {
  wait_for_previous_kernel();
  for_vectors<1>(rows * heads * to_D, [&](auto, int64_t i) {
    const int64_t row = i / (heads * to_D), h = i / to_D % heads, d = i % to_D;
    const float x = d < D ? load_one(from + row * from_stride + h * D + d) : 0.0f;
    store_one(to + row * to_stride + h * to_D + d, x);
  });
}

}  // namespace

void copy_heads(const HeadView& from, int64_t D, const HeadSpan& to, int64_t to_D, int64_t rows,
                int64_t heads, CUstream_st* stream) {
  const int64_t count = rows * heads * to_D;
  if (count <= 0) return;
  with_float(to.data.dtype, [&]<class T>() {
    MT_LAUNCH_DEPENDENT((copy_head_elements<T>), flat_blocks(count, 1), kFlatThreads, 0, stream,
                        data<T>(from.data), from.token_stride, D, data<T>(to.data), to.token_stride,
                        to_D, rows, heads);
  });
}

}  // namespace mtrain::kernels::cuda
