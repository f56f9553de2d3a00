#include "kernels/cross_entropy.h"

#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/dispatch_table.h"

namespace mtrain::kernels::cpu {
namespace {

void check_labels(const char* op, const ConstSpan& label_T, int64_t T, int64_t vocabulary) {
  check(op, "label", label_T, T, DType::i32);
  const int32_t* label = label_T.as<int32_t>();
  for (int64_t t = 0; t < T; ++t)
    MT_CHECK(label[t] < vocabulary, "{}: label[{}] = {} is not below the vocabulary's {}", op, t,
             label[t], vocabulary);
}

void check_cap(const char* op, float cap) {
  MT_CHECK(cap >= 0 && std::isfinite(cap), "{}: logits are capped at {}", op, cap);
}

void check_cross_entropy(const CrossEntropy& a) {
  check_cap("cross entropy", a.logit_cap);
  MT_CHECK(a.V > 0 && a.row_stride >= a.V, "cross entropy: rows of {} at a stride of {}", a.V,
           a.row_stride);
  if (a.T > 0) check_holds("cross entropy", "logits", a.logits_TV, (a.T - 1) * a.row_stride + a.V);
  check("cross entropy", "loss", a.loss_T, a.T, DType::f32);
  check_labels("cross entropy", a.label_T, a.T, a.V);
  if (a.scale_in_memory) check("cross entropy", "scale", a.scale_in_memory, 1, DType::f32);
}

template <class Args>
void check_part(const char* op, const Args& a) {
  check_cap(op, a.logit_cap);
  MT_CHECK(a.V >= 0 && a.row_stride >= a.V, "{}: rows of {} at a stride of {}", op, a.V,
           a.row_stride);
  MT_CHECK(a.first >= 0 && a.first + a.V <= a.vocabulary, "{}: {} columns from {} on, of {}", op,
           a.V, a.first, a.vocabulary);
  if (a.T > 0) check_holds(op, "logits", a.logits_TV, (a.T - 1) * a.row_stride + a.V);
  check_labels(op, a.label_T, a.T, a.vocabulary);
}

void check_sums(const CrossEntropySums& a) {
  const char* op = "cross entropy sums";
  check_part(op, a);
  check(op, "sums", a.sums_T3, a.T * kCrossEntropySums, DType::f32);
}

void check_from_sums(const CrossEntropyFromSums& a) {
  const char* op = "cross entropy from sums";
  check_part(op, a);
  MT_CHECK(a.P > 0, "{}: {} ranks", op, a.P);
  check(op, "sums", a.sums_PT3, a.P * a.T * kCrossEntropySums, DType::f32);
  check(op, "loss", a.loss_T, a.T, DType::f32);
  if (a.scale_in_memory) check(op, "scale", a.scale_in_memory, 1, DType::f32);
}

}  // namespace

MT_DISPATCH(CrossEntropy, check_cross_entropy)
MT_DISPATCH(CrossEntropySums, check_sums)
MT_DISPATCH(CrossEntropyFromSums, check_from_sums)

}  // namespace mtrain::kernels::cpu
