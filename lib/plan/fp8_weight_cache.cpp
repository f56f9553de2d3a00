#include "plan/fp8_weight_cache.h"

#include <fmt/core.h>

#include "recipe/recipe.h"

namespace mtrain::plan {

Fp8WeightCache resolve_fp8_weight_cache(const Recipe& r, const Layout& l, const Overlap& overlap) {
  if (r.mixed_precision.fp8 == recipe::Fp8Format::none) return {};
  if (shard_level(r) == ShardLevel::parameters && l.gradient_ranks() > 1)
    return {.gathered = overlap.fp8_param_gather};
  const TpGemmOverlap& gemms = overlap.tp_gemm_overlap;
  const bool recomputes = r.recompute.granularity == recipe::RecomputeGranularity::full ||
                          r.recompute.selects(recipe::RecomputeModule::mlp);
  return {.forward = l.step_micro_batches() > 1 || recomputes || any_chunked(gemms, Pass::fprop),
          .backward = l.step_micro_batches() > 1 || any_chunked(gemms, Pass::dgrad),
          .gathered = overlap.fp8_param_gather};
}

std::string print_fp8_weight_cache(const Fp8WeightCache& c) {
  if (c.gathered)
    return fmt::format("weights gathered in 8 bits, transposed {}",
                       c.backward ? "once a step" : "for each use");
  if (c.forward && c.backward) return "weights quantized once a step";
  if (c.forward) return "weights quantized once a step for forward";
  if (c.backward) return "weights quantized once a step for backward";
  return "weights quantized for each use";
}

}  // namespace mtrain::plan
