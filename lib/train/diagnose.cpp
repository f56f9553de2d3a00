#include "train/diagnose.h"

namespace mtrain {

namespace {

struct Found {
  std::string what;  // "output of `matmul_qkv_fwd` in layers.3.attention, element 17"
};

int64_t first_bad(Stream& on, const Tensor& x) {
  return ops::first_non_finite(on, x).to_host<int64_t>(on)[0];
}

}  // namespace

std::string Diagnosis::bad_parameter() {
  for (Parameter* p : trainer_.params_.params())
    if (const int64_t at = first_bad(trainer_.compute_, p->value); at >= 0)
      return fmt::format("parameter {} at element {}", p->name, at);
  return "";
}

void Diagnosis::explain(const std::vector<Batch>& batches, int64_t step) {
  Device& device = trainer_.device_;
  std::string what = bad_parameter();
  if (what.empty()) {
    bool checking = false;  // the check launches work itself
    device.set_launch_check([&](Stream& on, const LaunchInfo& info) {
      if (checking) return;
      checking = true;
      for (const Access& a : info.writes) {
        if (!a.data || (a.dtype != DType::f32 && a.dtype != DType::bf16)) continue;
        // A range as a tensor again: the check reads exactly what the launch wrote.
        const int64_t at = first_bad(on, Tensor::of(a));
        if (at < 0) continue;
        throw Found{
            fmt::format("the output of `{}` in {} at element {}", info.name, device.scope(), at)};
      }
      checking = false;
    });
    try {
      trainer_.params_.zero_grads(trainer_.compute_);
      trainer_.run_micro_batches(batches, step, 1.0f, false);
    } catch (const Found& found) {
      what = found.what;
    }
    device.set_launch_check({});
  }
  // Every rank is here, for all see the same sums. Who has found nothing leaves the word to who
  // has.
  const bool found = !what.empty();
  if (trainer_.any_rank(found) && !found)
    throw CommError(fmt::format("step {}: the loss or gradient norm is not finite because of what "
                                "another rank computed",
                                step),
                    "that rank's error says where it was first seen");
  if (!found) what = "the sum of squares of the gradients, all of which are finite by themselves";
  throw RunError(
      fmt::format("step {}: the loss or gradient norm is not finite; first seen in {}", step, what),
      "lower optimizer.lr, lengthen lr_scheduler.warmup_steps, or resume from the last checkpoint "
      "with another "
      "dataset.seed; parameters were not updated by this step");
}

}  // namespace mtrain
