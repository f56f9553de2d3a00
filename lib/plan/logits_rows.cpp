#include "plan/logits_rows.h"

#include <cmath>

#include <fmt/core.h>

#include "base/strings.h"
#include "plan/cheap_recompute.h"
#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

namespace {

// A rank's part of a micro-batch's logits.
struct Logits {
  int64_t T, V;            // tokens, and columns
  double bytes_per_token;  // with the rounded logits, if there are any

  explicit Logits(const RunPlan& plan)
      : T(plan.layout.micro_batch * plan.sample_length / plan.layout.cp),
        V(padded_vocab(plan.model.vocab, plan.layout.tp) / plan.layout.tp) {
    const DType dtype = plan.head_in_fp32 ? DType::f32 : plan.compute_dtype;
    const int64_t rounded = plan.logits_dtype ? dtype_size(*plan.logits_dtype) : 0;
    bytes_per_token = double(V * (dtype_size(dtype) + rounded));
  }
};

}  // namespace

void resolve_logits_rows(const recipe::Recipe& r, RunPlan& plan) {
  const Logits all(plan);
  plan.logits_rows = logits_rows(all.T, all.V, logits_bytes(r.train));
}

std::string logits_text(const recipe::Recipe& r, const RunPlan& plan) {
  const Logits all(plan);
  const int64_t rows = plan.logits_rows, chunks = ceil_div(all.T, rows);
  const auto bytes = [&](int64_t tokens) { return all.bytes_per_token * double(tokens); };
  if (chunks == 1) return fmt::format("{} tokens at once, {}", rows, human_bytes(bytes(rows)));
  const double gb = std::ceil(double(all.T) * double(all.V) * 4 / 1e8) / 10,
               more = bytes(all.T - rows), memory = device_memory(r);
  const bool fits = plan.fullest().total() + more <= kUsableMemory * memory;
  return fmt::format(
      "{} chunks of {} tokens, {} at once; train.logits_gb={:g} computes them together, with up to "
      "{} more{}",
      chunks, rows, human_bytes(bytes(rows)), gb, human_bytes(more),
      memory == 0 ? ""
      : fits      ? ", which fits"
                  : ", which does not fit");
}

}  // namespace mtrain::plan
