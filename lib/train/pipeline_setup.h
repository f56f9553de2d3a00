// Creates a rank's stages of the model from the plan, and its links to the other pipeline ranks.
#pragma once
#include "comm/world.h"
#include "device/device.h"
#include "model/gpt.h"
#include "pipeline/pipeline.h"
#include "plan/run_plan.h"

namespace mtrain::train {

// Declares this rank's stages in `params`.
pipeline::PipelineStages pipeline_stages(Stream& compute, model::ParamStore& params,
                                         const RunPlan& plan, int rank,
                                         const model::ModelImpls& impls);
// All ranks must call it, since it creates groups.
pipeline::PipelineLinks pipeline_links(comm::World& world, Device& device, const RunPlan& plan);

}  // namespace mtrain::train
