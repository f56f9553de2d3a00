#include "plan/device_text.h"

#include <unistd.h>

#include <fmt/core.h>

#include "base/strings.h"
#include "base/usable_cores.h"
#include "plan/cheap_recompute.h"

namespace mtrain::plan {

namespace {

constexpr const char* kLeftOver = "a tenth is left to libraries";

}  // namespace

std::string fit_text(const Recipe& r, const RunPlan& plan) {
  const double needed = plan.fullest().total();
  if (const double memory = device_memory(r); memory > 0)
    return fmt::format(
        "{} of {} planned{}: {}", human_bytes(needed), human_bytes(memory),
        plan.layout.world > 1 ? " on the fullest rank" : "",
        needed <= kUsableMemory * memory ? "fits" : fmt::format("does not fit ({})", kLeftOver));
  if (plan.device.kind != DeviceKind::cpu || plan.layout.world > usable_cores()) return "";
  const double all = needed * double(plan.layout.world),
               host = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGE_SIZE));
  return fmt::format(
      "{} of this host's {} planned{}: {}", human_bytes(all), human_bytes(host),
      plan.layout.world > 1 ? " for all ranks" : "",
      all <= kUsableMemory * host ? "fits" : fmt::format("does not fit ({})", kLeftOver));
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
