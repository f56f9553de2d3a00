#include "kernels/cuda/cudnn/spread_rows.h"

#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

template <int N, class To, class From>
__global__ void spread(const From* from, To* to, int64_t from_stride, int64_t to_stride,
                       int64_t rows, int64_t vectors, bool add) {
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * vectors;
       i += threads) {
    const int64_t row = i / vectors, column = i % vectors * N;
    float v[N], sum[N] = {};
    load<N>(from + row * from_stride + column, v);
    To* const at = to + row * to_stride + column;
    if (add) load<N>(at, sum);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] += sum[j];
    store<N>(at, v);
  }
}

}  // namespace

void run(const SpreadRows& s, CUstream_st* stream) {
  if (s.rows <= 0 || s.columns <= 0) return;
  constexpr int kWide = 8;
  const bool wide = aligned({s.from, s.to}) && s.columns % kWide == 0 &&
                    s.from_stride % kWide == 0 && s.to_stride % kWide == 0;
  with_float(s.to_type, [&]<class To>() {
    with_float(s.from_type, [&]<class From>() {
      if constexpr (mixes_halves<To, From>) {
        throw_not_float(s.from_type);
      } else {
        const auto launch = [&]<int N>() {
          MT_LAUNCH((spread<N, To, From>), flat_blocks(s.rows * s.columns, N), kFlatThreads, 0,
                    stream, static_cast<const From*>(s.from), static_cast<To*>(s.to), s.from_stride,
                    s.to_stride, s.rows, s.columns / N, s.add);
        };
        if (wide)
          launch.template operator()<kWide>();
        else
          launch.template operator()<1>();
      }
    });
  });
}

}  // namespace mtrain::kernels::cuda
