#include "predict/cluster_costs.h"

#include <fmt/core.h>

#include "predict/sheet_costs.h"

namespace mtrain::predict {

std::unique_ptr<const LaunchCosts> costs_for(const plan::Cluster& cluster,
                                             Diagnostics& diagnostics) {
  const auto unread = [&](const char* field, const std::string& value) {
    if (!value.empty())
      diagnostics.add_at(
          recipe::Severity::error, {cluster.source, 0, 0}, field, "cannot be used yet: " + value,
          fmt::format("remove {}: the prediction then takes the data sheets", field));
  };
  unread("calibration", cluster.calibration);
  unread("stack", cluster.stack);
  return std::make_unique<const SheetCosts>(cluster, StackConstants{});
}

}  // namespace mtrain::predict
