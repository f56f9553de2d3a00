// The cross entropy of logits and its gradient, which replaces them.
#pragma once
#include "ops/operation.h"

namespace mtrain::ops {

// Writes the loss of each token (fp32) and, with `write_grad`, replaces the logits by their
// gradient. V is the true vocabulary; padding columns may follow it. Labels are int32; a negative
// one masks its token. grad_scale_1 (one element, optional) replaces grad_scale and is read when
// the launch runs. With a logit_cap c above 0 the loss is that of c tanh(logits / c).
void cross_entropy(Stream& stream, const Tensor& logits_TV, const Tensor& label_T,
                   const Tensor& loss_T, int64_t V, float grad_scale, bool write_grad,
                   const Tensor& grad_scale_1 = {}, float logit_cap = 0);
// The two functions below compute the loss over a vocabulary that is distributed over P ranks. A
// rank's logits begin with the columns [first, first + V) of the true vocabulary; padding follows.
// V is 0 on a rank that has only padding.
struct VocabularyColumns {
  int64_t first, V, vocabulary;
};
// Returns three numbers for each token, (T, 3) fp32, to be gathered over the ranks in any order.
Tensor cross_entropy_sums(Stream& stream, const Tensor& logits_TV, const Tensor& label_T,
                          VocabularyColumns here, float logit_cap = 0);
// Takes the gathered numbers of all ranks. Writes the same loss on every rank, and the gradient of
// this rank's own logits. grad_scale_1 is as above.
void cross_entropy_from_sums(Stream& stream, const Tensor& logits_TV, const Tensor& label_T,
                             const Tensor& sums_PT3, const Tensor& loss_T, VocabularyColumns here,
                             float grad_scale, bool write_grad, const Tensor& grad_scale_1 = {},
                             float logit_cap = 0);

}  // namespace mtrain::ops
