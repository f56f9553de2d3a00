#include "base/rng.h"
#include "model/step.h"
#include "ops/ops.h"

namespace mtrain {

namespace {
uint64_t key(const Step& step, const std::string& place) {
  return rng_key(step.seed, fmt::format("dropout/{}/{}/{}", place, step.step, step.micro_batch));
}
}  // namespace

void drop(Step& step, const Tensor& x_TH, const std::string& place, float p, int64_t first_row) {
  if (step.training && p > 0)
    ops::dropout(step.compute, x_TH, key(step, place), first_row * x_TH.dim(1), p);
}

Tensor drop_backward(Step& step, const Tensor& d_TH, const std::string& place, float p,
                     int64_t first_row) {
  if (!step.training || p == 0) return d_TH;
  Tensor d = Tensor::empty(step.compute, d_TH.shape(), d_TH.dtype());
  ops::cast(step.compute, d_TH, d);
  ops::dropout(step.compute, d, key(step, place), first_row * d.dim(1), p);
  return d;
}

}  // namespace mtrain
