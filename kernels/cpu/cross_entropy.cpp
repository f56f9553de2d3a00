#include "kernels/cross_entropy.h"

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

void check_cross_entropy(const CrossEntropy& a) {
  MT_CHECK(a.V > 0 && a.row_stride >= a.V, "cross entropy: rows of {} at a stride of {}", a.V,
           a.row_stride);
  if (a.T > 0) check_holds("cross entropy", "logits", a.logits_TV, (a.T - 1) * a.row_stride + a.V);
  check("cross entropy", "label", a.label_T, a.T, DType::i32);
  check("cross entropy", "loss", a.loss_T, a.T, DType::f32);
  const int32_t* label = a.label_T.as<int32_t>();
  for (int64_t t = 0; t < a.T; ++t)
    MT_CHECK(label[t] < a.V, "cross entropy: label[{}] = {} is not below the vocabulary's {}", t,
             label[t], a.V);
}

}  // namespace

MT_DISPATCH(CrossEntropy, check_cross_entropy)

}  // namespace mtrain::kernels::cpu
