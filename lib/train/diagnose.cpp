#include "train/diagnose.h"

#include "base/error.h"
#include "device/device.h"
#include "ops/reduce.h"

namespace mtrain::train {

namespace {

constexpr int64_t kMaxLaunches = int64_t(1) << 32;  // more launches than a step has

int64_t first_bad(Stream& stream, const Tensor& x) {
  return ops::first_non_finite(stream, x).to_host<int64_t>(stream)[0];
}

}  // namespace

Diagnosis::Finding Diagnosis::bad_parameter() {
  s_.data_parallel.before_update();  // edge: gathers that write next to owned values -> this check
  for (const model::Parameter* p : s_.params.params())
    for (const model::OwnedPart& part : owned_parts(*p)) {
      const Tensor x = part.range->weights().flat(part.in_range, {part.count});
      if (const int64_t at = first_bad(s_.compute, x); at >= 0)
        return {
            fmt::format("parameter {} at element {}", p->name, p->full_index(part.in_param + at)),
            0};
    }
  return {};
}

// Runs the step to its end even after the first finding, since peers take part in its
// communication.
Diagnosis::Finding Diagnosis::bad_output() {
  Device& device = s_.device;
  Finding found;
  int64_t launches = 0;
  bool checking = false;  // true during the check's own launches
  struct Check {          // removes the check before the variables above are destroyed
    Device& device;
    const Device::LaunchCheck before;
    ~Check() { device.set_launch_check(before); }
  } const check{device, device.launch_check()};
  device.set_launch_check([&](Stream& stream, const device::LaunchInfo& info) {
    if (!checking && check.before) check.before(stream, info);  // it may plant what is looked for
    // Other streams receive results of other ranks, which check these themselves.
    if (checking || !found.what.empty() || &stream != &s_.compute) return;
    checking = true;
    ++launches;
    for (const device::Access& a : info.writes) {
      if (!a.data || a.partial || !is_float(a.dtype)) continue;
      // The tensor covers exactly the range that the launch wrote.
      const int64_t at = first_bad(stream, Tensor::of(a));
      if (at < 0) continue;
      found = {fmt::format("the output of `{}` in {} at element {}", info.name, device.scope(), at),
               s_.pipeline.dataflow_index() * kMaxLaunches + launches};
      break;
    }
    checking = false;
  });
  s_.params.zero_grads(s_.compute);
  s_.run_again();
  return found;
}

void Diagnosis::leave_to_finder(const Finding& found, int64_t step) {
  // Every rank calls this, since all have the same loss and gradient norm.
  const int64_t first = s_.control.least(found.at);
  if (found.at == first) return;
  throw CommError(fmt::format("step {}: the loss or gradient norm is not finite because of what "
                              "another rank computed",
                              step),
                  "that rank's error says where it was first seen");
}

void Diagnosis::explain(int64_t step) {
  Finding found = bad_parameter();
  leave_to_finder(found, step);
  if (found.what.empty()) {
    found = bad_output();
    leave_to_finder(found, step);
  }
  if (found.what.empty())
    found.what =
        "the sum of squares of the gradients; when the step is repeated, each gradient is finite";
  throw RunError(
      fmt::format("step {}: the loss or gradient norm is not finite; first seen in {}", step,
                  found.what),
      "lower optimizer.lr, lengthen lr_scheduler.warmup_steps, or resume from the last checkpoint "
      "with a different dataset.seed; parameters were not updated by this step");
}

}  // namespace mtrain::train
