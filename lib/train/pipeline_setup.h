// From the recipe to a rank's stages of the model and its place in the pipeline.
#pragma once
#include "comm/world.h"
#include "device/device.h"
#include "model/gpt.h"
#include "pipeline/pipeline.h"
#include "plan/layout.h"
#include "recipe/recipe.h"

namespace mtrain {

// What the ranks compute, in order; for one pipeline rank, micro-batch by micro-batch.
Schedule training_schedule(const Recipe& recipe, const Layout& layout);
// Declares this rank's stages in `params`.
PipelineStages pipeline_stages(Stream& on, ParamStore& params, const Recipe& recipe,
                               const GptConfig& config, const Layout& layout,
                               const Schedule& schedule, int rank, const ModelParts& parts);
PipelineLinks pipeline_links(World& world, Device& device, const Layout& layout,
                             const Schedule& schedule, bool tied_embeddings);
PipelineOptions pipeline_options(const Recipe& recipe, const Layout& layout);

}  // namespace mtrain
