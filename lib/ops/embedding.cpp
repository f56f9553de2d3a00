#include "ops/embedding.h"

#include "kernels/embedding.h"
#include "ops/enqueue.h"

MT_KERNEL(EmbeddingForward)
MT_KERNEL(EmbeddingBackward)

namespace mtrain::ops {

Tensor embedding(Stream& stream, const Tensor& id_T, const Tensor& table_VH,
                 const Tensor& position_T, const Tensor& position_table_PH, VocabularyShard shard,
                 float scale) {
  MT_DTYPE("embedding", id_T, DType::i32);
  MT_FLOAT("embedding", table_VH);
  const int64_t T = id_T.count(), V = table_VH.dim(0), H = table_VH.dim(1);
  Tensor out = Tensor::empty(stream, {T, H}, table_VH.dtype());
  kernels::EmbeddingForward args{.id_T = id_T,
                                 .table_VH = table_VH,
                                 .out_TH = out,
                                 .T = T,
                                 .H = H,
                                 .V = V,
                                 .first_row = shard.first_row,
                                 .vocabulary = shard.vocabulary,
                                 .scale = scale};
  if (position_table_PH) {
    MT_SHAPE("embedding", position_T, {T});
    MT_DTYPE("embedding", position_T, DType::i32);
    MT_SHAPE("embedding", position_table_PH, {position_table_PH.dim(0), H});
    MT_DTYPE("embedding", position_table_PH, table_VH.dtype());
    args.position_T = position_T;
    args.position_table_PH = position_table_PH;
  }
  enqueue(stream, "embedding_fwd", args);
  return out;
}

void embedding_backward(Stream& stream, const Tensor& id_T, const Tensor& dout_TH,
                        const Tensor& dtable_VH, VocabularyShard shard, float scale) {
  MT_DTYPE("embedding_backward", dtable_VH, DType::f32);
  const int64_t T = id_T.count(), V = dtable_VH.dim(0), H = dtable_VH.dim(1);
  MT_SHAPE("embedding_backward", dout_TH, {T, H});
  MT_DTYPE("embedding_backward", id_T, DType::i32);
  MT_FLOAT("embedding_backward", dout_TH);
  enqueue(stream, "embedding_bwd",
          kernels::EmbeddingBackward{.id_T = id_T,
                                     .dout_TH = dout_TH,
                                     .dtable_VH = dtable_VH,
                                     .T = T,
                                     .H = H,
                                     .V = V,
                                     .first_row = shard.first_row,
                                     .vocabulary = shard.vocabulary,
                                     .scale = scale});
}

}  // namespace mtrain::ops
