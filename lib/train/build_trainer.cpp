#include "train/build_trainer.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/log.h"
#include "model/param/write_weights.h"
#include "optim/param_rules.h"
#include "plan/process_groups.h"
#include "train/pipeline_setup.h"

namespace mtrain::train {

namespace {

// All ranks must call it, since the stages of a pipeline have different parameters.
void warn_of_unused_groups(const comm::HostCollectives& control, model::ParamStore& params,
                           const plan::OptimizerOptions& options) {
  if (options.groups.empty()) return;
  std::string own;
  for (const bool used : optim::ParamRules(options).used_groups(params.params()))
    own += used ? '1' : '0';
  const auto all = control.texts(own);
  for (size_t i = 0; i < options.groups.size(); ++i) {
    const bool used =
        std::ranges::any_of(all, [&](const std::string& rank) { return rank[i] == '1'; });
    if (!used && control.rank() == 0)
      log::warn(fmt::format(
          "optimizer.groups: group `{}` applies to no parameter: it matches none of their names, "
          "or earlier groups match these parameters; checkpoints list the names",
          options.groups[i].match));
  }
}

}  // namespace

// The order is the point of this file. Creating a group is a collective call, so all ranks must
// create their groups in this order. Nothing uses parameters before they have memory.
Trainer build_trainer(Device& device, RunPlan plan, std::shared_ptr<const data::Dataset> data,
                      comm::World world) {
  MT_CHECK(plan.model.vocab > 0, "the plan has no vocabulary");
  Stream& compute = device.stream(device::StreamKind::compute);
  const auto seed = uint64_t(plan.train.seed);

  // Groups of ranks, and the implementations that use them.
  world.connect(plan::process_groups(plan, world.rank()));
  const comm::HostCollectives control(world, device);
  model::ModelImpls impls = parallel::apply_parallelism(world, device, plan);
  pipeline::PipelineLinks links = pipeline_links(world, device, plan);
  const parallel::DataGroups groups = parallel::data_groups(world, device, plan);

  // Parameters: this rank's stages declare them, and then they get memory.
  RouterState routers(compute, plan.model);
  impls.router_bias_LE = routers.bias_LE();
  auto params = std::make_unique<model::ParamStore>();
  pipeline::PipelineStages stages = pipeline_stages(compute, *params, plan, world.rank(), impls);
  auto pipeline = std::make_unique<pipeline::Pipeline>(std::move(links), std::move(stages),
                                                       plan.schedule, plan.pipeline);
  auto data_parallel =
      parallel::materialize_params(*params, compute, groups, plan, impls.quantizer.get());

  // Optimizer, graphs and 8-bit scales, which refer to the parameters' memory.
  auto optimizer = optim::make_optimizer(compute, *params, plan.optimizer, seed, [&] {
    return optim::MatrixRanks{
        parallel::stage_group(world, plan), device.stream(device::StreamKind::dp_grad),
        [&](const std::vector<int>& ranks) { return world.group("matrix_copies", ranks); }};
  });
  std::unique_ptr<MicroBatchGraphs> graphs;
  if (plan.graphs.on)
    graphs = std::make_unique<MicroBatchGraphs>(compute, *params, *pipeline, *data_parallel,
                                                *optimizer, plan.graphs, plan.model.layer_count());
  warn_of_unused_groups(control, *params, plan.optimizer);
  if (impls.quantizer) impls.quantizer->materialize(compute);

  model::write_weights(*params, *data_parallel, impls.quantizer.get(), [&] {
    if (!device.is_recording()) params->initialize(compute, seed);
  });
  return Trainer({.device = device,
                  .compute = compute,
                  .plan = std::move(plan),
                  .world = std::move(world),
                  .control = control,
                  .params = std::move(params),
                  .impls = impls,
                  .pipeline = std::move(pipeline),
                  .data_parallel = std::move(data_parallel),
                  .graphs = std::move(graphs),
                  .optimizer = std::move(optimizer),
                  .routers = std::move(routers),
                  .data = std::move(data)});
}

}  // namespace mtrain::train
