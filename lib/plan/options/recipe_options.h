// Translates sections of the recipe into the options that the folders below the plan read.
#pragma once
#include <cstdint>

#include "plan/options/dataset_options.h"
#include "plan/options/device_plan.h"
#include "plan/options/optimizer_options.h"
#include "plan/options/parallel_options.h"
#include "plan/options/recompute_options.h"
#include "plan/options/train_options.h"

namespace mtrain::recipe {
struct LrSchedulerConfig;
struct MixedPrecisionConfig;
struct OptimizerConfig;
struct Recipe;
struct RecomputeConfig;
}  // namespace mtrain::recipe

namespace mtrain::plan {

RecomputeOptions recompute_options(const recipe::RecomputeConfig& recompute, int64_t layers);
ContextOptions context_options(const recipe::Recipe& recipe);
ExpertOptions expert_options(const recipe::Recipe& recipe);
OptimizerOptions optimizer_options(const recipe::OptimizerConfig& optimizer);
LossScaleOptions loss_scale_options(const recipe::MixedPrecisionConfig& precision);
LrScheduleOptions lr_schedule_options(const recipe::OptimizerConfig& optimizer,
                                      const recipe::LrSchedulerConfig& scheduler,
                                      int64_t train_steps);
// Returns the formats of linears with 8-bit GEMMs, whether the recipe turns these on or not.
LinearFormats linear_formats(const recipe::MixedPrecisionConfig& precision);
// `further`: the layers of multi-token prediction, which follow the model's `layers`.
Fp8Options fp8_options(const recipe::Recipe& recipe, int64_t layers, int64_t further);
TrainOptions train_options(const recipe::Recipe& recipe);
ValidationOptions validation_options(const recipe::Recipe& recipe);
CheckpointOptions checkpoint_options(const recipe::Recipe& recipe);
FolderOptions folder_options(const recipe::Recipe& recipe);
TokenizerOptions tokenizer_options(const recipe::Recipe& recipe);
DatasetOptions dataset_options(const recipe::Recipe& recipe);
// Does not set norm_sm_margin, gemm_sm_margin and CUDA's environment variables, which depend on the
// overlap.
DevicePlan device_plan_without_overlap(const recipe::Recipe& recipe);
CommOptions comm_options(const recipe::Recipe& recipe);
DebugOptions debug_options(const recipe::Recipe& recipe);
std::vector<FaultOptions> fault_options(const recipe::Recipe& recipe);

}  // namespace mtrain::plan
