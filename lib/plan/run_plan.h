// A RunPlan holds every decision of a run, made once from a recipe and a number of ranks. The dry
// run, the banner, the launcher and the trainer read the same plan; they cannot disagree.
#pragma once
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "mesh/mesh.h"
#include "plan/cuda_graphs.h"
#include "plan/fp8_weight_cache.h"
#include "plan/head_chunks.h"
#include "plan/layout.h"
#include "plan/memory.h"
#include "plan/model_size.h"
#include "plan/options/data_parallel_options.h"
#include "plan/options/dataset_options.h"
#include "plan/options/device_plan.h"
#include "plan/options/optimizer_options.h"
#include "plan/options/parallel_options.h"
#include "plan/options/pipeline_options.h"
#include "plan/options/recompute_options.h"
#include "plan/options/train_options.h"
#include "plan/overlap.h"
#include "plan/plan_text.h"
#include "plan/schedule_bounds.h"
#include "schedule/action.h"
#include "spec/model_spec.h"

namespace mtrain::recipe {
struct Recipe;
}  // namespace mtrain::recipe

namespace mtrain::plan {

struct RunPlan {
  Layout layout;
  mesh::Mesh mesh;              // pp, dp_replicate, dp_shard, cp, tp
  mesh::Mesh moe_mesh() const;  // pp, dp_replicate, ep_shard, ep, tp
  Overlap overlap;
  CudaGraphs graphs;
  Fp8WeightCache fp8_weights;
  ScheduleShape schedule_shape;
  schedule::Schedule schedule;  // computations of each pipeline rank, without messages
  PipelineOptions pipeline;
  DataParallelOptions data_parallel;
  TensorOptions tensor;
  ContextOptions context;
  ExpertOptions experts;

  spec::ModelSpec model;
  ModelParameters parameters;  // counts for the full model
  TokenCost token_cost;
  RecomputeOptions recompute;
  // The estimated costs of a micro-batch; absent for a model whose experts exchange nothing.
  std::optional<schedule::PassCosts> pass_costs;
  DType compute_dtype = DType::f32;   // type of activations and of the weights that GEMMs read
  std::optional<DType> logits_dtype;  // the loss rounds logits to this type; empty: it does not
  bool head_in_fp32 = false;          // the output layer's weight, GEMMs and logits are fp32
  Fp8Options fp8;
  int64_t sample_length = 0;  // tokens
  HeadChunks head_chunks;     // chunks of attention's heads under context parallelism
  // Tokens of a micro-batch whose logits exist at once; 0 in a plan without a vocabulary.
  int64_t logits_rows = 0;
  // What a rank keeps in memory, by pipeline rank; empty in a plan without a vocabulary.
  std::vector<MemoryEstimate> memory;

  OptimizerOptions optimizer;
  LrScheduleOptions lr_schedule;
  LossScaleOptions loss_scale;
  TrainOptions train;
  ValidationOptions validation;
  CheckpointOptions checkpoint;
  FolderOptions folders;
  DatasetOptions dataset;
  DevicePlan device;
  CommOptions comm;
  DebugOptions debug;
  PlanText text;

  const MemoryEstimate& fullest() const;  // the entry of `memory` with the largest total
};

// Makes the plan of a recipe in which load_recipe() found no error. `world` is the number of ranks
// (0: the fewest that fit). `vocab` is the number of tokens in the vocabulary, which the tokenizer
// may decide (0: not known yet). Throws UserError if a schedule's file cannot be read. Takes
// milliseconds for any number of ranks.
RunPlan make_plan(const recipe::Recipe& recipe, int64_t world, int64_t vocab);

}  // namespace mtrain::plan

// All folders use this name.
namespace mtrain {
using plan::RunPlan;
}  // namespace mtrain
