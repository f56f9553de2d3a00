// What of a training is saved, by which rank, and how it is read back under any layout.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "comm/host_collectives.h"
#include "model/data_parallel.h"
#include "model/fp8.h"
#include "model/tensor_parallel.h"
#include "optim/adamw.h"
#include "pipeline/pipeline.h"
#include "storage/state.h"

namespace mtrain::checkpoint {

// What a rank gives to a checkpoint and takes back from one.
struct CheckpointParts {
  Stream& compute;
  model::ParamStore& params;
  optim::AdamW& optimizer;
  model::DataParallel& data_parallel;
  model::TensorParallel& tensor_parallel;
  const pipeline::Pipeline& pipeline;
  model::Float8Scaling* fp8;  // null without 8-bit linears
  const comm::HostCollectives& control;
  // The parameters of the whole model, declared alone: their names and layout-free shapes.
  std::unique_ptr<model::ParamStore> whole_model;
};

struct TrainProgress {
  int64_t steps_done = 0;
};

struct SaveOptions {
  std::filesystem::path root;  // the folder of checkpoints
  int64_t keep = 0;            // how many of the newest stay; 0: all
  std::string recipe;          // the text of recipe.yaml
  // What the caller adds to state.json; only rank 0's counts.
  storage::TrainState state;
  // Called before each step of the commit; may be empty.
  std::function<void(std::string_view)> on_commit;
};

// Writes model.safetensors (fp32 weights under their global names), optimizer.safetensors
// (<name>.m, <name>.v), state.json and recipe.yaml, which are the same under every layout. All
// ranks call it; rank 0 writes and returns the checkpoint's path. The others return an empty path
// when all is on disk.
std::filesystem::path save_checkpoint(const CheckpointParts& parts, const TrainProgress& progress,
                                      SaveOptions options);

// What load_checkpoint() returns: the progress of the saved run, and its state.json.
struct LoadedCheckpoint {
  TrainProgress progress;
  storage::TrainState state;
};

// Puts everything back, so that the next step is the one the saved run would have made. `recipe` is
// the text of the present recipe. UserError that lists every difference where the checkpoint is of
// another model, data or seed.
LoadedCheckpoint load_checkpoint(const CheckpointParts& parts, const std::string& recipe,
                                 const std::filesystem::path& folder);

// Reads weights alone, into parameters that may have no gradients. UserError where the checkpoint
// has other tensors than the parameters, or more of them.
void load_weights(Stream& stream, model::ParamStore& params, const std::filesystem::path& folder);

// The file of a checkpoint's or a run's folder that holds its recipe.
std::filesystem::path recipe_file(const std::filesystem::path& folder);

}  // namespace mtrain::checkpoint
