#include "base/rng.h"
#include "model/step.h"
#include "ops/ops.h"

namespace mtrain {

namespace {
uint64_t key(const Step& step, const std::string& place) {
  return rng_key(step.seed, fmt::format("dropout/{}/{}/{}", place, step.step, step.micro_batch));
}

// Numbered by the elements of the whole sequence.
void drop_rows(const Step& step, const Tensor& x_TH, const std::string& place, float p) {
  const SequenceInfo& seq = step.seq;
  const uint64_t stream = key(step, place);
  if (seq.runs.empty()) return ops::dropout(step.compute, x_TH, stream, 0, p);
  int64_t row = 0;
  for (const SequenceInfo::Run& run : seq.runs) {
    const int64_t rows = run.count * seq.B;
    ops::dropout(step.compute, x_TH.rows(row, row + rows), stream, run.first * seq.B * x_TH.dim(1),
                 p);
    row += rows;
  }
  MT_CHECK(row == x_TH.dim(0), "{} rows in runs of {}", x_TH.dim(0), row);
}
}  // namespace

void drop(Step& step, const Tensor& x_TH, const std::string& place, float p) {
  if (step.training && p > 0) drop_rows(step, x_TH, place, p);
}

Tensor drop_backward(Step& step, const Tensor& d_TH, const std::string& place, float p) {
  if (!step.training || p == 0) return d_TH;
  Tensor d = Tensor::empty(step.compute, d_TH.shape(), d_TH.dtype());
  ops::cast(step.compute, d_TH, d);
  drop_rows(step, d, place, p);
  return d;
}

}  // namespace mtrain
