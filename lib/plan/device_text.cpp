#include "plan/device_text.h"

#include <unistd.h>

#include <fmt/core.h>

#include "base/strings.h"
#include "base/usable_cores.h"
#include "plan/cheap_recompute.h"

namespace mtrain::plan {

namespace {

constexpr const char* kLeftOver = "a tenth is left to libraries";

// Returns the ranks that need most memory: those of one pipeline rank, which are alike.
std::string fullest_ranks(const RunPlan& plan) {
  const Layout& l = plan.layout;
  if (l.world == 1) return "the rank";
  if (l.pp == 1) return fmt::format("each of the {} ranks", l.world);
  const int64_t pp_rank = &plan.fullest() - plan.memory.data(), ranks = l.world / l.pp;
  const int64_t first = pp_rank * ranks;  // pp is the outermost axis of the mesh
  return ranks == 1 ? fmt::format("rank {}", first)
                    : fmt::format("each of the ranks {} to {} (pp rank {})", first,
                                  first + ranks - 1, pp_rank);
}

}  // namespace

bool uses_gpus(const RunPlan& plan) { return plan.device.kind == DeviceKind::cuda; }

bool MemoryDemand::fits() const { return !known() || bytes <= kUsableMemory * memory; }

MemoryDemand memory_demand(const Recipe& r, const RunPlan& plan) {
  const double fullest = plan.fullest().total();
  if (const double memory = device_memory(r); memory > 0) return {fullest, memory};
  if (plan.device.kind != DeviceKind::cpu || plan.layout.world > host_cores()) return {};
  const double host = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGE_SIZE));
  return {fullest * double(plan.layout.world), host, true};
}

std::string fit_text(const Recipe& r, const RunPlan& plan) {
  const MemoryDemand d = memory_demand(r, plan);
  if (!d.known()) return "";
  const char* ranks = plan.layout.world == 1 ? ""
                      : d.of_host            ? " for all ranks"
                                             : " on the fullest rank";
  return fmt::format("{} of {}{} planned{}: {}", human_bytes(d.bytes),
                     d.of_host ? "this host's " : "", human_bytes(d.memory), ranks,
                     d.fits() ? "fits" : fmt::format("does not fit ({})", kLeftOver));
}

std::string need_text(const MemoryDemand& d, const RunPlan& plan) {
  const std::string who =
      d.of_host && plan.layout.world > 1
          ? fmt::format("the {} ranks of this host need {} together, and it", plan.layout.world,
                        human_bytes(d.bytes))
          : fmt::format("{} needs {}, and {}", fullest_ranks(plan), human_bytes(d.bytes),
                        d.of_host ? "this host" : "its device");
  return fmt::format("{} has {}, of which {}", who, human_bytes(d.memory), kLeftOver);
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
