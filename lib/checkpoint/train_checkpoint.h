// Saves a training, and reads it back under any layout.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/added_files.h"
#include "checkpoint/replicated_state.h"
#include "checkpoint/save_error.h"
#include "checkpoint/save_plan.h"
#include "comm/host_collectives.h"
#include "model/data_parallel.h"
#include "model/quantizer.h"
#include "model/tensor_parallel.h"
#include "optim/optimizer.h"
#include "plan/saved_recipe.h"
#include "spec/tensors.h"
#include "storage/block_writer.h"
#include "storage/checkpoint_dir.h"
#include "storage/state.h"

namespace mtrain::checkpoint {

// What saving and loading need from a rank: its state, and the objects that transfer state between
// ranks.
struct CheckpointParts {
  Stream& compute;
  model::ParamStore& params;
  optim::Optimizer& optimizer;
  model::DataParallel& data_parallel;
  model::TensorParallel& tensor_parallel;
  CopiesOfUnits copies;
  model::Quantizer* quantizer;  // null without 8-bit linears
  const comm::HostCollectives& control;
  // Those that checkpoints hold: all of the model, or its adapters alone.
  std::vector<spec::TensorSpec> parameters;
  // Tensors that every rank has, for all layers of the model.
  std::vector<ReplicatedTensor> replicated;
  // Called from time to time while this rank reads or writes. `what` is "weights", "moments"
  // or "checkpoint"; `done` and `total` are bytes. It is "added", without bytes, when
  // the files of SaveOptions::added are next. May be empty.
  std::function<void(std::string_view what, int64_t done, int64_t total)> progress = {};
  int io_threads = storage::kIoThreads;  // that read and write files
};

struct TrainProgress {
  int64_t steps_done = 0;
  int64_t updates = 0;  // steps that were not skipped
  // The samples of all steps, and of the updates alone. They are not multiples of the batch if the
  // run has changed its size.
  int64_t samples = 0, updated_samples = 0;
  std::string loss_scale;  // the text of LossScaler::save(); empty without a loss scale
  std::string spikes;      // the text of SpikeGuard::save(); empty without a guard
};

struct SaveOptions {
  std::filesystem::path root;   // the folder of checkpoints
  storage::KeepRule keep;       // which checkpoints are kept
  storage::SavingJob job = {};  // the job and its attempt, for the temporary folder's name
  std::string recipe;           // the text of the recipe, for state.json and recipe.yaml
  // The caller's entries of state.json. Only those of rank 0 are written.
  storage::TrainState state;
  AddedFiles added = {};  // committed with the checkpoint, if they could be written; may be empty
  // Called with the name of each moment of a save; may be empty. On each rank there is "write",
  // before it writes its files, and on rank 0 there are the steps of CheckpointWriter::commit(). A
  // save in the background also has "stage", when the copies are enqueued, and "block", after each
  // part of at most 16 MiB. Ranks other than 0 have "report", when they have written their files.
  std::function<void(std::string_view)> on_commit;
};

// Saves a checkpoint of format 2 (docs/checkpoints.md). Each rank writes its own part of the
// weights and of the optimizer's state; elements that several ranks have are written once. Rank 0
// writes index.json, state.json, which records the recipe, and recipe.yaml, a copy of the recipe.
// All ranks must call it. Rank 0 returns the checkpoint's path. The others return an empty path
// when all files are on disk. If a rank cannot write, all ranks throw a SaveError that names the
// rank and the file, and there is no checkpoint. It is thrown at once if the disk lacks the space.
std::filesystem::path save_checkpoint(const CheckpointParts& parts, const TrainProgress& progress,
                                      SaveOptions options);

// What load_checkpoint() returns: the progress of the saved run, and its state.json.
struct LoadedCheckpoint {
  TrainProgress progress;
  storage::TrainState state;
};

// Restores the full state: the next step is the one that the saved run would have made. `recipe` is
// the text of the present recipe. Throws UserError, which lists every difference, if the checkpoint
// was saved with a different model, data or seed. Throws RunError, which names the file, if a file
// has values that a training cannot have. Throws storage::DamagedCheckpoint on all ranks if a rank
// finds a file damaged; the parameters are then undefined, and another checkpoint may be loaded.
//
// `other_data` has a line for each field of the recipe whose data differ in content from those of
// the saved run. Without it the fields are compared as texts. All ranks must call it.
LoadedCheckpoint load_checkpoint(const CheckpointParts& parts, const recipe::ModelSource& models,
                                 const std::string& recipe, const std::filesystem::path& folder,
                                 const std::optional<std::string>& other_data = {});

// Returns the progress that state.json records. A checkpoint of an earlier version records steps
// alone; the batch of its recipe then gives the samples. Throws UserError if there is no training.
TrainProgress read_progress(const recipe::ModelSource& models, const std::filesystem::path& folder);

// Returns state.json; an empty state if there is none, as in a checkpoint of imported weights.
storage::TrainState read_state(const std::filesystem::path& folder);

// Restores the model without its training state: weights, the replicated tensors of the model, and
// the scales of 8-bit linears. Checks the tensors as load_weights() does, and does not compare the
// recipe with the saved one. Returns state.json, or an empty state for imported weights, which have
// none. All ranks must call it, under any layout.
storage::TrainState load_model(const CheckpointParts& parts, const std::filesystem::path& folder);

// Reads only the weights and the replicated tensors of the model. Parameters may have no gradients.
// Throws UserError if the checkpoint lacks a tensor, or has one that the model does not use and
// that is not in `unused`. `progress`, which may be empty, receives the bytes that have been read
// (as fp32), and the total.
void load_weights(Stream& stream, model::ParamStore& params,
                  const std::vector<ReplicatedTensor>& replicated,
                  const std::filesystem::path& folder,
                  const std::function<void(int64_t done, int64_t total)>& progress = {},
                  const std::set<std::string>& unused = {});

// Returns the recipe under which the checkpoint in `folder` was saved.
plan::SavedRecipe saved_recipe(const std::filesystem::path& folder);

}  // namespace mtrain::checkpoint
