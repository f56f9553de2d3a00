#include "plan/cheap_recompute.h"

#include <fmt/core.h>

#include "base/gpu_facts.h"
#include "base/strings.h"
#include "plan/run_plan.h"
#include "recipe/recipe.h"

namespace mtrain::plan {

namespace {

void estimate(bool cheap, RunPlan& plan, PairOrders& orders, const recipe::Recipe& r) {
  plan.recompute.cheap = cheap;
  plan.memory.clear();
  for (int64_t rank = 0; rank < plan.layout.pp; ++rank)
    plan.memory.push_back(
        estimate_memory(plan, rank, orders,
                        {.ranks_per_host = r.hardware.gpus_per_node,
                         .switch_sums = facts(r.hardware.gpu).compute_capability >= 9}));
}

}  // namespace

double device_memory(const recipe::Recipe& r) {
  if (r.hardware.memory_gb) return *r.hardware.memory_gb * 1e9;
  const auto origin = r.origins.find("hardware.gpu");
  const bool known = r.given("hardware.gpu") ||
                     (origin != r.origins.end() && origin->second == recipe::Origin::derived);
  return known && r.train.device == recipe::DeviceChoice::cuda
             ? facts(r.hardware.gpu).planned_memory()
             : 0;
}

void resolve_cheap_recompute(const recipe::Recipe& r, RunPlan& plan) {
  const auto& asked = r.recompute.cheap;
  const auto say = [&](const char* what, const std::string& why) {
    plan.text.recompute += fmt::format("; outputs of norms and activations {}{}", what, why);
  };
  if (plan.model.vocab == 0) {  // the memory is not known yet, and this plan trains nothing
    plan.recompute.cheap = asked.value_or(true);
    return;
  }
  PairOrders orders;  // recomputation does not change them
  const double memory = device_memory(r);
  if (asked || memory == 0) {
    estimate(asked.value_or(true), plan, orders, r);
    if (asked) say(*asked ? "computed again" : "kept", "");
    return;
  }
  estimate(false, plan, orders, r);
  const double kept = plan.fullest().total();
  const auto planned = [&](const char* form) {
    return fmt::format(fmt::runtime(form), human_bytes(kept), human_bytes(memory));
  };
  if (kept <= kUsableMemory * memory) return say("kept", planned(": {} of {} in all"));
  estimate(true, plan, orders, r);
  say("computed again", planned(", since with them {} of {} would be needed"));
}

}  // namespace mtrain::plan
