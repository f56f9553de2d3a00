#include "plan/device_text.h"

#include <unistd.h>

#include <fmt/core.h>

#include "base/strings.h"
#include "base/usable_cores.h"
#include "plan/cheap_recompute.h"

namespace mtrain::plan {

namespace {

constexpr const char* kLeftOver = "a tenth is left to libraries";

// The bytes that a plan needs, and the bytes of the memory that it must fit; 0: not known. CPU
// ranks count together if this host has a core for each of them.
struct Demand {
  double bytes = 0, memory = 0;
  const char *whose = "", *ranks = "";
};
Demand demand_of(const Recipe& r, const RunPlan& plan) {
  const double fullest = plan.fullest().total();
  if (const double memory = device_memory(r); memory > 0)
    return {fullest, memory, "", " on the fullest rank"};
  if (plan.device.kind != DeviceKind::cpu || plan.layout.world > usable_cores()) return {};
  const double host = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGE_SIZE));
  return {fullest * double(plan.layout.world), host, "this host's ", " for all ranks"};
}

}  // namespace

bool fits(const Recipe& r, const RunPlan& plan) {
  const Demand d = demand_of(r, plan);
  return d.bytes <= kUsableMemory * d.memory || d.memory == 0;
}

std::string fit_text(const Recipe& r, const RunPlan& plan) {
  const Demand d = demand_of(r, plan);
  if (d.memory == 0) return "";
  return fmt::format("{} of {}{} planned{}: {}", human_bytes(d.bytes), d.whose,
                     human_bytes(d.memory), plan.layout.world > 1 ? d.ranks : "",
                     fits(r, plan) ? "fits" : fmt::format("does not fit ({})", kLeftOver));
}

std::string device_text(const Recipe& r, const RunPlan& plan) {
  std::string text;
  if (plan.device.kind == DeviceKind::cuda)
    text = fmt::format("{} for each rank (hardware.gpu), {} in a node", enum_name(r.hardware.gpu),
                       r.hardware.gpus_per_node);
  else if (plan.device.threads > 0)
    text = fmt::format("CPU, {} thread{} for each rank", plan.device.threads,
                       plan.device.threads == 1 ? "" : "s");
  else
    text = "CPU, whose cores the ranks of a host share";
  return text;
}

}  // namespace mtrain::plan
