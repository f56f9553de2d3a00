// Options of a run: how long it trains, when it evaluates and saves, and where its files are.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/math.h"

namespace mtrain::plan {

// Decides which steps update nothing (train.on_spike, train.spike_factor).
struct SpikeOptions {
  bool skip = false;  // a step that is not finite, or a spike, is skipped; otherwise the run stops
  double factor = 0;  // a larger multiple of the running median of norms is a spike; 0: none is
  bool on() const { return skip || factor > 0; }
};

struct TrainOptions {
  std::optional<double> epochs;  // set if the recipe gives epochs instead of steps
  int64_t epoch_samples = 0;     // of all epochs; 0 without epochs
  // `steps` is 0 while it depends on data whose size is not known yet.
  int64_t steps = 0, global_batch_size = 0, seed = 0, log_every = 10;
  std::optional<int64_t> time_every;           // empty: the first ten, then those that are logged
  bool check_loss = true, check_grads = true;  // stop if they are not finite
  SpikeOptions spikes;
  bool find_stragglers = true;
  // Gradients are divided by the number of micro-batches and by the number of tokens.
  bool grads_per_micro_batch = false;
  std::optional<int64_t> exit_interval;  // steps
  std::optional<double> exit_minutes;
};

// Returns the last step of a run that has done `steps` steps with `samples` samples. Epochs count
// samples: if earlier steps had batches of another size, another number of steps makes them.
inline int64_t last_step(const TrainOptions& train, int64_t steps, int64_t samples) {
  const int64_t batch = train.global_batch_size;
  const int64_t rest = train.epochs ? train.epoch_samples - samples : 0;
  if (!train.epochs) return train.steps;
  return rest >= 0 ? steps + ceil_div(rest, batch) : steps - -rest / batch;
}

struct ValidationOptions {
  int64_t every_steps = 0;  // 0: only at the end
  int64_t steps = 0;        // global batches per evaluation; 0: all of the data
};

// Copies on the hosts themselves (checkpoint.local).
struct LocalCopyOptions {
  std::string dir;  // empty: no copies
  int64_t every_steps = 1;
  int replicas = 0;                // hosts that have a part besides its own
  int64_t max_bytes = 0;           // on a host; 0: no limit
  double replica_bytes_per_s = 0;  // of a host; 0: no limit
  bool on() const { return !dir.empty(); }
  // The steps whose parts a host has at most: the newest complete one, and the one that is being
  // written. If replicas fail, the newest step that has all of them stays as well.
  static int64_t kept_steps(int64_t replicas) { return replicas > 0 ? 3 : 2; }
};

struct CheckpointOptions {
  enum class Consolidated { none, at_end, every };
  int64_t every_steps = 0;  // 0: only at the end
  int64_t keep = 2;         // how many of the newest are kept; 0: all
  int64_t keep_every = 0;   // multiples of this step are kept as well; 0: none
  int64_t keep_best = 0;    // how many with the lowest validation loss are kept as well
  bool at_end = true;
  LocalCopyOptions local;
  bool saves() const { return every_steps > 0 || at_end || keep_best > 0; }
  Consolidated consolidated = Consolidated::none;  // which are also saved in Hugging Face form
  int64_t io_threads = 4;                          // of a rank, which read and write files
  bool stop_on_error = false;                      // a save that fails during training ends the run
  // Whether training continues while a checkpoint is written; automatic: where host memory allows.
  enum class Async { off, automatic, on };
  Async async = Async::automatic;
  // Whether a save that is due while another is being written is skipped. Otherwise it waits.
  bool skip_when_busy = false;
  // Whether any save is due before the end of the run.
  bool saves_during_training() const { return every_steps > 0 || keep_best > 0; }
};

struct FolderOptions {
  std::string run_dir, checkpoint_dir;
  std::string tensorboard_dir;  // empty: no event files are written
  // The checkpoint to start from.
  enum class Load { none, latest, path };
  Load load = Load::none;
  std::string load_path;       // a checkpoint's folder, or that of a run
  bool load_or_start = false;  // starts at step 1 if load_path has no checkpoint
  // The Hugging Face folder with the initial weights, if the run starts from no checkpoint; or "".
  std::string weights_from;
  std::vector<std::string> ignore_keys;  // keys of that folder's config.json
};

}  // namespace mtrain::plan
