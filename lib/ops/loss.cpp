#include "kernels/cross_entropy.h"

#include "ops/enqueue.h"
#include "ops/ops.h"

MT_KERNEL(CrossEntropy)

namespace mtrain::ops {

void cross_entropy(Stream& on, const Tensor& logits_TV, const Tensor& label_T, const Tensor& loss_T,
                   int64_t V, float grad_scale, bool write_grad) {
  const int64_t T = logits_TV.dim(0);
  MT_SHAPE("cross_entropy", label_T, {T});
  MT_SHAPE("cross_entropy", loss_T, {T});
  MT_FLOAT("cross_entropy", logits_TV);
  MT_DTYPE("cross_entropy", label_T, DType::i32);
  MT_DTYPE("cross_entropy", loss_T, DType::f32);
  MT_CHECK(V <= logits_TV.dim(1), "cross_entropy: vocabulary {} in rows of {}", V,
           logits_TV.dim(1));
  std::vector<Access> writes{loss_T};
  if (write_grad) writes.push_back(logits_TV);
  enqueue(on, {.name = "cross_entropy", .reads = {logits_TV, label_T}, .writes = std::move(writes)},
          kernels::CrossEntropy{.logits_TV = logits_TV,
                                .label_T = label_T,
                                .loss_T = loss_T,
                                .T = T,
                                .V = V,
                                .row_stride = logits_TV.dim(1),
                                .grad_scale = grad_scale,
                                .write_grad = write_grad});
}

}  // namespace mtrain::ops
