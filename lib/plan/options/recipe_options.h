// From the recipe's sections to the options that the body of the house reads.
#pragma once
#include <cstdint>

#include "plan/options/dataset_options.h"
#include "plan/options/device_plan.h"
#include "plan/options/model_shape.h"
#include "plan/options/optimizer_options.h"
#include "plan/options/parallel_options.h"
#include "plan/options/train_options.h"

namespace mtrain {

struct LrSchedulerConfig;
struct MixedPrecisionConfig;
struct ModelConfig;
struct OptimizerConfig;
struct Recipe;
struct RecomputeConfig;

// `vocab` is the true vocabulary; `sample_length` is the longest sequence unless the model has one.
ModelShape model_shape(const ModelConfig& model, int64_t vocab, int64_t sample_length);
RecomputeOptions recompute_options(const RecomputeConfig& recompute, int64_t layers);
ContextOptions context_options(const Recipe& recipe);
OptimizerOptions optimizer_options(const OptimizerConfig& optimizer);
LrScheduleOptions lr_schedule_options(const OptimizerConfig& optimizer,
                                      const LrSchedulerConfig& scheduler, int64_t train_steps);
Fp8Options fp8_options(const MixedPrecisionConfig& precision);
TrainOptions train_options(const Recipe& recipe);
ValidationOptions validation_options(const Recipe& recipe);
CheckpointOptions checkpoint_options(const Recipe& recipe);
FolderOptions folder_options(const Recipe& recipe);
TokenizerOptions tokenizer_options(const Recipe& recipe);
DatasetOptions dataset_options(const Recipe& recipe);
DevicePlan device_plan(const Recipe& recipe);  // without what the overlap decides
CommOptions comm_options(const Recipe& recipe);
DebugOptions debug_options(const Recipe& recipe);

}  // namespace mtrain
