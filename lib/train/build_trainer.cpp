#include "train/build_trainer.h"

#include "optim/write_weights.h"
#include "train/model_setup.h"
#include "train/pipeline_setup.h"

namespace mtrain::train {

// The order is the point of this file: ranks meet when a group is made, so that all make theirs in
// this order; and nothing looks at parameters before they have memory.
Trainer build_trainer(Device& device, RunPlan plan, std::shared_ptr<const data::Dataset> data,
                      comm::World world) {
  MT_CHECK(plan.model.vocab > 0, "a plan without a vocabulary");
  Stream& compute = device.stream(device::StreamKind::compute);
  const auto seed = uint64_t(plan.train.seed);
  const model::GptConfig config = gpt_config(plan);

  // Groups of ranks, and what parallelism puts in the place of the model's plain parts.
  const comm::HostCollectives control(world, device);
  const model::ModelImpls model = parallel::model_impls(world, device, plan);
  pipeline::PipelineLinks links = pipeline_links(world, device, plan, config.tied_embeddings);
  const parallel::DataGroups groups = parallel::data_groups(world, device, plan);

  // Parameters: this rank's stages declare theirs, which then get memory.
  auto params = std::make_unique<model::ParamStore>();
  pipeline::PipelineStages stages =
      pipeline_stages(compute, *params, config, plan, world.rank(), model);
  auto pipeline = std::make_unique<pipeline::Pipeline>(std::move(links), std::move(stages),
                                                       plan.schedule, plan.pipeline);
  auto data_ranks = materialize(*params, compute, groups, plan, pipeline->first_stage());

  // What refers to the parameters' memory, and takes its own.
  std::unique_ptr<MicroBatchGraphs> graphs;
  if (plan.graphs.on)
    graphs = std::make_unique<MicroBatchGraphs>(compute, *params, *pipeline, plan.graphs,
                                                plan.model.layers);
  optim::AdamW adamw(compute, *params, plan.optimizer, seed);
  if (model.fp8) model.fp8->materialize(compute);

  // Weights.
  optim::write_weights(*params, *data_ranks, model.fp8.get(),
                       [&] { params->initialize(compute, seed); });
  return Trainer({.device = device,
                  .compute = compute,
                  .plan = std::move(plan),
                  .world = std::move(world),
                  .control = control,
                  .params = std::move(params),
                  .model = model,
                  .pipeline = std::move(pipeline),
                  .data_parallel = std::move(data_ranks),
                  .graphs = std::move(graphs),
                  .adamw = std::move(adamw),
                  .data = std::move(data)});
}

}  // namespace mtrain::train
