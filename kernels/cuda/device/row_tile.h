// How blocks find their rows among those of experts, whose numbers only the device knows.
#pragma once
#include "kernels/cuda/device/reduce.h"

namespace mtrain::kernels::cuda {

struct RowTile {
  int expert;  // -1: none
  int row, end;
};
// Tiles of HEIGHT rows are numbered expert by expert. All threads of a block call this. A warp sums
// the tiles of 32 experts at a time.
template <int HEIGHT>
__device__ __forceinline__ RowTile find_tile(const int32_t* first_E1, int E, int number) {
  __shared__ RowTile found;
  if (threadIdx.x < kWarp) {
    const int lane = int(threadIdx.x);
    RowTile mine{-1, 0, 0};
    bool any = false;
    for (int e0 = 0, before = 0; e0 < E && !any; e0 += kWarp) {
      const int e = e0 + lane;
      const int row = e < E ? first_E1[e] : 0, end = e < E ? first_E1[e + 1] : 0;
      const int tiles = (end - row + HEIGHT - 1) / HEIGHT;
      const int last = before + warp_prefix_sum(tiles), first = last - tiles;
      if (first <= number && number < last) mine = {e, row + (number - first) * HEIGHT, end};
      any = __ballot_sync(kAllLanes, mine.expert >= 0) != 0;
      before = __shfl_sync(kAllLanes, last, kWarp - 1);
    }
    if (mine.expert >= 0 || (lane == 0 && !any)) found = mine;
  }
  __syncthreads();
  return found;
}
// Returns enough blocks for the tiles of any split of R rows.
inline unsigned max_tiles(int64_t R, int64_t E, int64_t height) { return unsigned(R / height + E); }

}  // namespace mtrain::kernels::cuda
