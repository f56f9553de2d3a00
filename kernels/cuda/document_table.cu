#include "kernels/cuda/cudnn/document_table.h"

#include "kernels/cuda/device/grid.h"

namespace mtrain::kernels::cuda {
namespace {

__global__ void fill_table(DocumentTable t) {
  const int64_t d = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (d > t.room) return;
  const bool is_document = d < t.documents;
  const int32_t begin = is_document ? t.begin[d] : t.end[t.documents - 1];
  if (d < t.room) t.lengths[d] = is_document ? t.end[d] - begin : 0;
  for (int64_t i = 0; i < t.tensors; ++i)
    t.offsets[i * t.pitch + d] = int32_t(begin * t.strides[i]);
}

}  // namespace

void run(const DocumentTable& t, CUstream_st* stream) {
  MT_LAUNCH(fill_table, blocks_for(t.room + 1, kFlatThreads), kFlatThreads, 0, stream, t);
}

}  // namespace mtrain::kernels::cuda
