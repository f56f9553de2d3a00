#include "optim/optimizer.h"

#include "ops/elementwise.h"
#include "optim/adamw.h"
#include "optim/muon.h"

namespace mtrain::optim {

std::unique_ptr<Optimizer> make_optimizer(Stream& stream, model::ParamStore& params,
                                          const plan::OptimizerOptions& options, uint64_t seed,
                                          const std::function<MatrixRanks()>& ranks) {
  if (options.muon.on) return std::make_unique<Muon>(stream, params, options, seed, ranks());
  return std::make_unique<AdamW>(stream, params, options, seed);
}

ops::Clip clip_grad_norm(Stream& stream, model::ParamStore& params,
                         const std::function<void(const Tensor&)>& sum_parts, float max_norm,
                         const Tensor& loss, const ops::ClipLimits& limits) {
  // Copies are summed apart: they must be finite, too, and do not count.
  const Tensor totals = Tensor::empty(stream, {2}, DType::f64, device::MemoryCategory::buffers);
  ops::fill(stream, totals, 0);
  const model::NormGrads grads = norm_grads(params);
  for (const Tensor& grad : grads.counted) ops::sum_squares(stream, grad, totals.flat(0, {1}));
  for (const Tensor& grad : grads.copies) ops::sum_squares(stream, grad, totals.flat(1, {1}));
  sum_parts(totals);
  return ops::clip_scale(stream, totals, loss, max_norm, limits);
}

}  // namespace mtrain::optim
