#include "train/diagnose.h"

namespace mtrain {

namespace {

constexpr int64_t kLaunchesOfPlace = int64_t(1) << 32;  // more than there are

int64_t first_bad(Stream& on, const Tensor& x) {
  return ops::first_non_finite(on, x).to_host<int64_t>(on)[0];
}

}  // namespace

Diagnosis::Finding Diagnosis::bad_parameter() {
  trainer_.data_parallel_->before_update();  // gathers that write beside these have ended
  for (const Parameter* p : trainer_.params_.params())
    for (const OwnedPart& part : owned_parts(*p)) {
      const Tensor x = part.range->weights().flat(part.in_range, {part.count});
      if (const int64_t at = first_bad(trainer_.compute_, x); at >= 0)
        return {
            fmt::format("parameter {} at element {}", p->name, p->whole_index(part.in_param + at)),
            0};
    }
  return {};
}

// To the end even after something was found: peers take part in the same communication.
Diagnosis::Finding Diagnosis::bad_output(const std::vector<Batch>& batches, int64_t step) {
  Device& device = trainer_.device_;
  Finding found;
  int64_t launches = 0;
  bool checking = false;  // the check launches work itself
  struct Check {          // does not outlive what it refers to
    Device& device;
    ~Check() { device.set_launch_check({}); }
  } const check{device};
  device.set_launch_check([&](Stream& on, const LaunchInfo& info) {
    // Other streams bring what other ranks have computed, who look at that themselves.
    if (checking || !found.what.empty() || &on != &trainer_.compute_) return;
    checking = true;
    ++launches;
    for (const Access& a : info.writes) {
      if (!a.data || a.partial || (a.dtype != DType::f32 && a.dtype != DType::bf16)) continue;
      // A range as a tensor again: the check reads exactly what the launch wrote.
      const int64_t at = first_bad(on, Tensor::of(a));
      if (at < 0) continue;
      found = {fmt::format("the output of `{}` in {} at element {}", info.name, device.scope(), at),
               trainer_.pipeline_->dataflow_index() * kLaunchesOfPlace + launches};
      break;
    }
    checking = false;
  });
  trainer_.params_.zero_grads(trainer_.compute_);
  trainer_.run_micro_batches(batches, step, 1.0f, false);
  return found;
}

void Diagnosis::leave_to_finder(const Finding& found, int64_t step) {
  // Every rank is here, for all see the same sums.
  const int64_t first = trainer_.control_.least(found.at);
  if (found.at == first) return;
  throw CommError(fmt::format("step {}: the loss or gradient norm is not finite because of what "
                              "another rank computed",
                              step),
                  "that rank's error says where it was first seen");
}

void Diagnosis::explain(const std::vector<Batch>& batches, int64_t step) {
  Finding found = bad_parameter();
  leave_to_finder(found, step);
  if (found.what.empty()) {
    found = bad_output(batches, step);
    leave_to_finder(found, step);
  }
  if (found.what.empty())
    found.what = "the sum of squares of the gradients, all of which are finite by themselves";
  throw RunError(
      fmt::format("step {}: the loss or gradient norm is not finite; first seen in {}", step,
                  found.what),
      "lower optimizer.lr, lengthen lr_scheduler.warmup_steps, or resume from the last checkpoint "
      "with another "
      "dataset.seed; parameters were not updated by this step");
}

}  // namespace mtrain
