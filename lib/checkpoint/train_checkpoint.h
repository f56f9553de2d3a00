// Saves a training, and reads it back under any layout.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/replicated_state.h"
#include "comm/host_collectives.h"
#include "model/data_parallel.h"
#include "model/quantizer.h"
#include "model/tensor_parallel.h"
#include "optim/optimizer.h"
#include "pipeline/pipeline.h"
#include "plan/saved_recipe.h"
#include "storage/checkpoint_dir.h"
#include "storage/state.h"

namespace mtrain::checkpoint {

// What saving and loading need of a rank: its state, and what moves it between ranks.
struct CheckpointParts {
  Stream& compute;
  model::ParamStore& params;
  optim::Optimizer& optimizer;
  model::DataParallel& data_parallel;
  model::TensorParallel& tensor_parallel;
  const pipeline::Pipeline& pipeline;
  model::Quantizer* quantizer;  // null without 8-bit linears
  const comm::HostCollectives& control;
  // The parameters of the whole model, declared without memory: their names and layout-free shapes.
  std::unique_ptr<model::ParamStore> whole_model;
  // Every rank has all of these, for the layers of the whole model.
  std::vector<ReplicatedTensor> replicated;
  // Called now and then while this rank reads or rank 0 writes, with what is read or written
  // ("weights", "moments", "checkpoint") and bytes; may be empty.
  std::function<void(std::string_view what, int64_t done, int64_t total)> progress = {};
};

struct TrainProgress {
  int64_t steps_done = 0;
  int64_t updates = 0;     // steps without those that an overflow of fp16 skipped
  std::string loss_scale;  // the text of LossScaler::save(); empty without a loss scale
};

struct SaveOptions {
  std::filesystem::path root;  // the folder of checkpoints
  storage::KeepRule keep;      // which checkpoints stay
  std::string recipe;          // its text, for state.json and recipe.yaml
  // The caller's entries of state.json. Only those of rank 0 are written.
  storage::TrainState state;
  // Called before each step of the commit; may be empty.
  std::function<void(std::string_view)> on_commit;
};

// Writes model.safetensors (fp32 weights under their global names), optimizer.safetensors
// (<name>.m, <name>.v for AdamW), state.json, which records the recipe, and recipe.yaml, a copy of
// that. The tensor files are the same under every layout. All ranks call it; rank 0 writes and
// returns the checkpoint's path. The others return an empty path when all files are on disk.
std::filesystem::path save_checkpoint(const CheckpointParts& parts, const TrainProgress& progress,
                                      SaveOptions options);

// What load_checkpoint() returns: the progress of the saved run, and its state.json.
struct LoadedCheckpoint {
  TrainProgress progress;
  storage::TrainState state;
};

// Restores everything, so that the next step is the one the saved run would have made. `recipe` is
// the text of the present recipe. Throws UserError, which lists every difference, if the checkpoint
// was saved with another model, data or seed; RunError, which names the file, for one that is
// damaged or has values that no training has. `other_data` has a line for each field of the recipe
// whose data hold something else; without it the fields are compared as texts. All ranks call it.
LoadedCheckpoint load_checkpoint(const CheckpointParts& parts, const std::string& recipe,
                                 const std::filesystem::path& folder,
                                 const std::optional<std::string>& other_data = {});

// Returns state.json; an empty state if there is none, as in a checkpoint of imported weights.
storage::TrainState read_state(const std::filesystem::path& folder);

// Restores what the model computes with, and nothing of its training: the weights, what else the
// model depends on, and the scales of 8-bit linears. Nothing is compared with the saved run but the
// tensors, as by load_weights(). Returns state.json, which a checkpoint of imported weights lacks.
// All ranks call it, under any layout.
storage::TrainState load_model(const CheckpointParts& parts, const std::filesystem::path& folder);

// Reads only the weights, into parameters that may have no gradients, and what else the model
// depends on. Throws UserError if the checkpoint lacks a tensor, or has one that nothing uses.
// `progress`, which may be empty, gets bytes of fp32 that are read, and all of them.
void load_weights(Stream& stream, model::ParamStore& params,
                  const std::vector<ReplicatedTensor>& replicated,
                  const std::filesystem::path& folder,
                  const std::function<void(int64_t done, int64_t total)>& progress = {});

// Returns the recipe under which the checkpoint in `folder` was saved.
plan::SavedRecipe saved_recipe(const std::filesystem::path& folder);

}  // namespace mtrain::checkpoint
