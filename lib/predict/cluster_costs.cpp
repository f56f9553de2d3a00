#include "predict/cluster_costs.h"

#include <algorithm>
#include <optional>

#include <fmt/core.h>

#include "predict/measured_costs.h"
#include "predict/sheet_costs.h"

namespace mtrain::predict {

std::unique_ptr<const LaunchCosts> costs_for(const plan::Cluster& cluster, const RunPlan& plan,
                                             const std::vector<std::string>& recipe_folders,
                                             Diagnostics& diagnostics) {
  StackConstants constants;
  if (!cluster.stack.empty()) constants = plan::stack_of(cluster, recipe_folders, diagnostics);
  const int64_t threads = plan.device.threads;
  if (plan.device.compute_slowdown != 1)
    diagnostics.warn("debug.compute_slowdown", "does not count in a prediction", "leave it out");
  if (cluster.calibration.empty()) {
    if (plan.comm.link_gbps > 0 || plan.comm.link_latency_us > 0)
      diagnostics.warn("comm.link", "does not count in a prediction by data sheets",
                       "use a cluster file with a calibration");
    return std::make_unique<const SheetCosts>(cluster, constants, threads);
  }
  Diagnostics own;
  plan::Calibration measured = plan::read_calibration(cluster.calibration, own);
  for (const recipe::Diagnostic& d : own.sorted())
    diagnostics.add_at(d.severity, d.location, d.field, d.reason, d.hint);
  const std::string kind(enum_name(cluster.kind));
  if (!own.has_errors() && measured.device != kind)
    diagnostics.add_at(
        recipe::Severity::error, {cluster.calibration, 0, 0}, "kind",
        fmt::format("is {}, but the cluster has {} ({})", measured.device, kind, cluster.kind_at),
        "measure such a device with `mtrain calibrate`, or correct the cluster file");
  if (own.has_errors() || measured.device != kind)
    return std::make_unique<const SheetCosts>(cluster, StackConstants{}, threads);
  // A CPU of a cluster file is one core. The ranks of a host share its caches and its memory.
  std::optional<CpuRanks> cpu;
  if (cluster.has_cpus())
    cpu = {.threads = std::max<int64_t>(1, plan.device.threads),
           .of_host = std::min(plan.layout.world, cluster.domain_gpus)};
  return std::make_unique<const MeasuredCosts>(std::move(measured), cluster, cpu,
                                               emulated_link(plan.comm));
}

}  // namespace mtrain::predict
