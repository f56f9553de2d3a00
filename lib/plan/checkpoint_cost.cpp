#include "plan/checkpoint_cost.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include "base/math.h"
#include "plan/run_plan.h"
#include "recipe/schema/comm.h"
#include "spec/tensors.h"

namespace mtrain::plan {

namespace {

// Returns the elements that Muon updates. The first group whose expression is found in a
// parameter's name decides, as in optim::ParamRules.
Count muon_elements(const RunPlan& plan) {
  if (!plan.optimizer.muon.on) return 0;
  std::vector<std::regex> matches;
  for (const OptimizerGroup& group : plan.optimizer.groups) matches.emplace_back(group.match);
  const auto by_adamw = [&](const std::string& name) {
    const auto match =
        std::ranges::find_if(matches, [&](const auto& m) { return std::regex_search(name, m); });
    return match != matches.end() && plan.optimizer.groups[size_t(match - matches.begin())].adamw;
  };
  Count elements = 0;
  for (const spec::TensorSpec& p : spec::parameters(plan.model))
    if (p.role == TensorRole::matrix && !by_adamw(p.name)) elements += Count(p.full_shape.count());
  return elements;
}

// Returns the bytes of all saved weights: master weights, or else those that the model computes
// with.
Count weight_bytes(const RunPlan& plan) {
  if (plan.model.lora) {
    const Count frozen = plan.parameters.total() - plan.parameters.adapters;
    return 4 * plan.parameters.adapters +
           (saves_adapters_alone(plan) ? 0 : Count(dtype_size(plan.compute_dtype)) * frozen);
  }
  if (plan.optimizer.master_weights || plan.compute_dtype == DType::f32)
    return 4 * plan.parameters.total();
  const Count narrow = Count(dtype_size(plan.compute_dtype)),
              bytes = narrow * plan.parameters.total();
  const Count head = plan.parameters.final_norm + plan.parameters.output;
  return plan.head_in_fp32 ? bytes + (4 - narrow) * head : bytes;
}

// Returns the largest part of a checkpoint that a rank writes. Ranks of a pipeline rank write equal
// parts.
double largest_share(const RunPlan& plan) {
  Count all = 0, most = 0;
  for (const MemoryEstimate& m : plan.memory) {
    all += m.parameters;
    most = std::max(most, m.parameters);
  }
  const int64_t ranks_of_stage = plan.layout.world / plan.layout.pp;
  return all > 0 ? most / all / double(ranks_of_stage) : 0;
}

}  // namespace

SaveHardware save_hardware(const recipe::HardwareConfig& h) {
  constexpr double kBitsPerByte = 8, kSecondsPerHour = 3600;
  SaveHardware out{.disk_bytes_per_s = {}, .node_mtbf_s = {}, .gpus_per_node = h.gpus_per_node};
  if (h.disk_gbps) out.disk_bytes_per_s = *h.disk_gbps * 1e9 / kBitsPerByte;
  if (h.mtbf_hours) out.node_mtbf_s = *h.mtbf_hours * kSecondsPerHour;
  return out;
}

bool saves_adapters_alone(const RunPlan& plan) {
  return plan.model.lora && !plan.folders.weights_from.empty();
}

CheckpointCost checkpoint_cost(const RunPlan& plan, const SaveHardware& hardware) {
  const Count all = plan.parameters.total(), muon = muon_elements(plan);
  const double moments = plan.optimizer.moments == DType::bf16 ? 4 : 8;
  CheckpointCost cost{.bytes = weight_bytes(plan) + 4 * muon +
                               moments * (plan.model.lora ? plan.parameters.adapters : all - muon),
                      .staged = {},
                      .ranks_per_node = std::min(plan.layout.world, hardware.gpus_per_node),
                      .seconds = {},
                      .nodes = ceil_div(plan.layout.world, hardware.gpus_per_node),
                      .mtbf_s = {},
                      .interval_s = {}};
  cost.staged = cost.bytes * largest_share(plan);
  if (hardware.disk_bytes_per_s) cost.seconds = cost.bytes / *hardware.disk_bytes_per_s;
  if (hardware.node_mtbf_s) cost.mtbf_s = *hardware.node_mtbf_s / double(cost.nodes);
  if (!cost.seconds || !cost.mtbf_s) return cost;
  cost.interval_s = std::sqrt(2 * *cost.seconds * *cost.mtbf_s);
  cost.lost = *cost.seconds / *cost.interval_s + *cost.interval_s / (2 * *cost.mtbf_s);
  return cost;
}

}  // namespace mtrain::plan
