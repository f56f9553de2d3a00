#include "ops/loss.h"

#include "kernels/cross_entropy.h"
#include "ops/enqueue.h"

MT_KERNEL(CrossEntropy)
MT_KERNEL(CrossEntropySums)
MT_KERNEL(CrossEntropyFromSums)

namespace mtrain::ops {

namespace {
// Returns the logits of a launch that only reads them unless it writes their gradient.
Span logits_span(const Tensor& logits_TV, bool write_grad) {
  Span logits = logits_TV;
  if (!write_grad) logits.use = SpanUse::read;
  return logits;
}
}  // namespace

void cross_entropy(Stream& stream, const Tensor& logits_TV, const Tensor& label_T,
                   const Tensor& loss_T, int64_t V, float grad_scale, bool write_grad,
                   const Tensor& grad_scale_1, float logit_cap) {
  const int64_t T = logits_TV.dim(0);
  MT_SHAPE("cross_entropy", label_T, {T});
  MT_SHAPE("cross_entropy", loss_T, {T});
  MT_FLOAT("cross_entropy", logits_TV);
  MT_DTYPE("cross_entropy", label_T, DType::i32);
  MT_DTYPE("cross_entropy", loss_T, DType::f32);
  if (grad_scale_1) MT_DTYPE("cross_entropy", grad_scale_1, DType::f32);
  MT_CHECK(V <= logits_TV.dim(1), "cross_entropy: vocabulary {} in rows of {}", V,
           logits_TV.dim(1));
  enqueue(stream, "cross_entropy",
          kernels::CrossEntropy{.logits_TV = logits_span(logits_TV, write_grad),
                                .label_T = label_T,
                                .loss_T = loss_T,
                                .T = T,
                                .V = V,
                                .row_stride = logits_TV.dim(1),
                                .grad_scale = grad_scale,
                                .write_grad = write_grad,
                                .scale_in_memory = grad_scale_1,
                                .logit_cap = logit_cap});
}

Tensor cross_entropy_sums(Stream& stream, const Tensor& logits_TV, const Tensor& label_T,
                          VocabularyColumns here, float logit_cap) {
  const int64_t T = logits_TV.dim(0);
  MT_SHAPE("cross_entropy_sums", label_T, {T});
  MT_FLOAT("cross_entropy_sums", logits_TV);
  MT_DTYPE("cross_entropy_sums", label_T, DType::i32);
  MT_CHECK(here.V <= logits_TV.dim(1), "cross_entropy_sums: vocabulary {} in rows of {}", here.V,
           logits_TV.dim(1));
  Tensor sums_T3 = Tensor::empty(stream, {T, kernels::kCrossEntropySums}, DType::f32);
  // The maximum of a rank without columns is -inf.
  enqueue(stream, "cross_entropy_sums",
          kernels::CrossEntropySums{.logits_TV = logits_TV,
                                    .label_T = label_T,
                                    .sums_T3 = partly_written(sums_T3),
                                    .T = T,
                                    .V = here.V,
                                    .row_stride = logits_TV.dim(1),
                                    .first = here.first,
                                    .vocabulary = here.vocabulary,
                                    .logit_cap = logit_cap});
  return sums_T3;
}

void cross_entropy_from_sums(Stream& stream, const Tensor& logits_TV, const Tensor& label_T,
                             const Tensor& sums_PT3, const Tensor& loss_T, VocabularyColumns here,
                             float grad_scale, bool write_grad, const Tensor& grad_scale_1,
                             float logit_cap) {
  const int64_t T = logits_TV.dim(0);
  if (grad_scale_1) MT_DTYPE("cross_entropy_from_sums", grad_scale_1, DType::f32);
  MT_SHAPE("cross_entropy_from_sums", label_T, {T});
  MT_SHAPE("cross_entropy_from_sums", loss_T, {T});
  MT_SHAPE("cross_entropy_from_sums", sums_PT3, {sums_PT3.dim(0), T, kernels::kCrossEntropySums});
  MT_FLOAT("cross_entropy_from_sums", logits_TV);
  MT_DTYPE("cross_entropy_from_sums", label_T, DType::i32);
  MT_DTYPE("cross_entropy_from_sums", sums_PT3, DType::f32);
  MT_DTYPE("cross_entropy_from_sums", loss_T, DType::f32);
  MT_CHECK(here.V <= logits_TV.dim(1), "cross_entropy_from_sums: vocabulary {} in rows of {}",
           here.V, logits_TV.dim(1));
  enqueue(stream, "cross_entropy_from_sums",
          kernels::CrossEntropyFromSums{.logits_TV = logits_span(logits_TV, write_grad),
                                        .label_T = label_T,
                                        .sums_PT3 = sums_PT3,
                                        .loss_T = loss_T,
                                        .P = sums_PT3.dim(0),
                                        .T = T,
                                        .V = here.V,
                                        .row_stride = logits_TV.dim(1),
                                        .first = here.first,
                                        .vocabulary = here.vocabulary,
                                        .grad_scale = grad_scale,
                                        .write_grad = write_grad,
                                        .scale_in_memory = grad_scale_1,
                                        .logit_cap = logit_cap});
}

}  // namespace mtrain::ops
