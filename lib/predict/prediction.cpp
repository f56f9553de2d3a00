#include "predict/prediction.h"

#include <array>

namespace mtrain::predict {

namespace {

constexpr std::array kAxes{"tp", "cp", "ep", "dp", "pp", "control"};

// The parallelism that a stream serves: "dp" of dp_grad and dp_param.
std::string_view axis_of(size_t kind) {
  const std::string_view name = device::stream_kind_name(device::StreamKind(kind));
  return name.substr(0, name.find('_'));
}

double sum_of(const ByStreamKind& times, std::string_view axis) {
  double sum = 0;
  for (size_t kind = 0; kind < kStreamKinds; ++kind)
    if (axis_of(kind) == axis) sum += times[kind];
  return sum;
}

}  // namespace

double Prediction::exposed(std::string_view axis) const { return sum_of(times.exposed, axis); }
double Prediction::busy(std::string_view axis) const { return sum_of(times.busy, axis); }

std::vector<NamedTime> Prediction::parts() const {
  std::vector<NamedTime> all;
  const auto add = [&](std::string name, double seconds) {
    if (seconds > 0) all.push_back({std::move(name), seconds});
  };
  for (size_t c = 0; c < kLaunchClasses; ++c)
    add(std::string(class_name(LaunchClass(c))), times.compute[c]);
  add("gaps between launches", times.gaps);
  add("idle for later ranks", times.idle);
  for (const char* axis : kAxes) add(std::string("exposed ") + axis, exposed(axis));
  add("bubble", bubble_s);
  return all;
}

Band band_of(const RunPlan& plan, const plan::Cluster& cluster, double unknown) {
  constexpr double kMostUnknown = 0.1, kUncalibrated = 0.5;
  if (cluster.uncalibrated())
    return {kUncalibratedBand, "uncalibrated: data sheets and assumed efficiencies"};
  if (cluster.calibration.empty())
    return {0.3, "constants fitted to another program's figures (stack " + cluster.stack + ")"};
  // Also the figures of other ranks than those that were measured: with other threads, or another
  // number of them on a host.
  if (unknown > kMostUnknown)
    return {unknown > kUncalibrated ? kUncalibratedBand : 0.3,
            fmt::format("{:.0f} % of the time lies outside of what was measured", 100 * unknown)};
  if (plan.model.experts()) return {0.25, "experts: the rows of each rank depend on the router"};
  return {0.1, "measured times (" + cluster.calibration + ")"};
}

double peak_flops(const RunPlan& plan, const plan::Cluster& cluster) {
  return cluster.peak_flops(plan.compute_dtype, plan.device.threads);
}

}  // namespace mtrain::predict
