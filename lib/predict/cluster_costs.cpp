#include "predict/cluster_costs.h"

#include <algorithm>

#include <fmt/core.h>

#include "predict/measured_costs.h"
#include "predict/sheet_costs.h"

namespace mtrain::predict {

std::unique_ptr<const LaunchCosts> costs_for(const plan::Cluster& cluster, const RunPlan& plan,
                                             Diagnostics& diagnostics) {
  StackConstants constants;
  if (!cluster.stack.empty()) constants = plan::stack_of(cluster, diagnostics);
  if (cluster.calibration.empty()) return std::make_unique<const SheetCosts>(cluster, constants);
  Diagnostics own;
  plan::Calibration measured = plan::read_calibration(cluster.calibration, own);
  for (const recipe::Diagnostic& d : own.sorted())
    diagnostics.add_at(d.severity, d.location, d.field, d.reason, d.hint);
  if (own.has_errors()) return std::make_unique<const SheetCosts>(cluster, StackConstants{});
  // A CPU of a cluster file is one core.
  const int64_t threads = std::max<int64_t>(1, plan.device.threads);
  return std::make_unique<const MeasuredCosts>(std::move(measured), cluster, threads,
                                               emulated_link(plan.comm));
}

}  // namespace mtrain::predict
