#include "run/rank_consistency.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "plan/pass_costs.h"

namespace mtrain::run {

void require_same_on_all_ranks(const comm::HostCollectives& control, const std::string& what,
                               const std::string& own, const std::string& hint) {
  const auto all = control.texts(own);
  const auto other =
      std::ranges::find_if(all, [&](const auto& text) { return !text.empty() && text != all[0]; });
  if (other == all.end()) return;
  throw UserError(fmt::format("rank {} has a different {} from rank 0: {} instead of {}",
                              other - all.begin(), what, *other, all[0]),
                  hint);
}

void require_same_exchange_order(const comm::HostCollectives& control, const RunPlan& plan) {
  if (!plan.pipeline.pair_costs) return;
  require_same_on_all_ranks(control, "cost estimate for the parts of a pass",
                            plan::print_pass_costs(*plan.pipeline.pair_costs),
                            "the hosts have different GPUs: set hardware.gpu in the recipe to the "
                            "same name for all ranks");
}

std::string dataset_fingerprint(const data::Dataset& data) {
  Fnv1a hash;
  for (const int64_t index : {int64_t(0), data.size() - 1}) {
    data::Sample sample;
    data.sample(index, sample);
    for (const int32_t id : sample.input) hash.add(uint64_t(id));
    for (const int32_t id : sample.label) hash.add(uint64_t(id));
  }
  return fmt::format("{} samples (first and last hash to {:016x})", data.size(), hash.value());
}

}  // namespace mtrain::run
