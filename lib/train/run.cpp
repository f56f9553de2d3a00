#include "train/run.h"

#include <sched.h>
#include <chrono>
#include <optional>

#include "base/log.h"
#include "base/strings.h"
#include "device/flight_recorder.h"
#include "ops/tuning.h"
#include "train/data_setup.h"
#include "train/interrupt.h"
#include "train/model_setup.h"
#include "train/reporter.h"
#include "train/run_folder.h"
#include "train/snapshot.h"

namespace mtrain {

namespace {

// Cores that this process may use, shared with the other ranks of the host.
int default_threads() {
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const char* ranks = std::getenv("LOCAL_WORLD_SIZE");
  return std::max(1, cores / std::max(1, ranks ? std::atoi(ranks) : 1));
}

std::unique_ptr<Device> open_device(const Recipe& r) {
  if (r.train.device == DeviceChoice::cuda)
    throw UserError("train.device=cuda: training on GPUs is not built yet", "use train.device=cpu");
  const int threads = r.train.threads ? int(r.train.threads) : default_threads();
  return Device::cpu(threads, {.stream_sanitizer = r.debug.stream_sanitizer});
}

class Training {
 public:
  Training(const Recipe& recipe, const RunOptions& options, std::optional<CheckpointRef> start)
      : recipe_(recipe),
        start_(std::move(start)),
        device_(open_device(recipe)),
        config_(gpt_config(recipe.model, vocabulary(recipe), recipe.dataset.seq_length)),
        trainer_(*device_, recipe, config_, open_training_data(recipe, config_.vocab)),
        reporter_(trainer_, recipe, options.profile) {
    if (auto data = open_validation_data(recipe, config_.vocab))
      validation_.emplace(std::move(data), recipe.validation.steps * recipe.train.global_batch_size,
                          LoaderOptions{.micro_batch = recipe.train.micro_batch_size});
  }

  void run() {
    try {
      run_steps();
    } catch (const UserError&) {
      throw;
    } catch (...) {
      tell_last_launches();
      throw;
    }
  }

 private:
  void run_steps() {
    resume();
    reporter_.start();
    const Interrupt interrupt;
    while (trainer_.steps_done() < recipe_.train.steps && !interrupt.signal()) {
      reporter_.step(trainer_.step());
      const int64_t step = trainer_.steps_done();
      if (due(recipe_.validation.every_steps, step) && step < recipe_.train.steps) evaluate();
      if (due(recipe_.checkpoint.every_steps, step)) save();
    }
    if (interrupt.signal())
      reporter_.note(fmt::format("signal {}: saving and ending", interrupt.signal()));
    if (!interrupt.signal()) evaluate();
    if (saved_ != trainer_.steps_done()) save();
    reporter_.finish();
  }

  void tell_last_launches() {
    constexpr int kLaunches = 20;
    std::string text = "the run failed; the last launches were:";
    for (const std::string& line : device_->recorder().lines(kLaunches)) text += "\n  " + line;
    log::info(text);
  }

  static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

  void resume() {
    make_run_folder(recipe_);
    if (start_) {
      load_snapshot(trainer_, recipe_, start_->path);
      saved_ = trainer_.steps_done();
      reporter_.note(fmt::format("continuing after step {} of {}", saved_, start_->path.string()));
    } else if (recipe_.checkpoint.load) {
      reporter_.note("checkpoint.load=latest: nothing to continue from, starting at step 1");
    }
    for (const auto& line : set_aside_abandoned(recipe_, start_)) reporter_.note(line);
  }

  void evaluate() {
    if (validation_) reporter_.validation(trainer_.evaluate(*validation_), validation_->samples());
  }

  void save() {
    const auto path = save_snapshot(trainer_, recipe_, recipe_.checkpoint.dir);
    saved_ = trainer_.steps_done();
    reporter_.note(fmt::format("saved {}", path.string()));
  }

  const Recipe& recipe_;
  std::optional<CheckpointRef> start_;
  std::unique_ptr<Device> device_;
  GptConfig config_;
  Trainer trainer_;
  std::optional<ValidationLoader> validation_;
  Reporter reporter_;
  int64_t saved_ = 0;  // step of the newest checkpoint
};

}  // namespace

void run_training(const Recipe& recipe, const RunOptions& options) {
  const SurvivePipes pipes;
  const auto start = claim_run_folder(recipe);
  ops::load_matmul_libraries();  // before the device has threads
  ops::fix_matmul_choices(recipe.debug.deterministic);
  Training(recipe, options, start).run();
}

void generate_from_run(const std::string& run, std::string_view prompt, GenerateOptions options,
                       const std::function<void(std::string_view)>& emit) {
  const auto found = locate_checkpoint(run);
  if (!found)
    throw UserError(fmt::format("{} holds no complete checkpoint", run),
                    "give a run folder or a checkpoint folder");
  const Recipe recipe = load_saved_recipe(found->path);
  ops::fix_matmul_choices(true);  // every length is a new shape: nothing to gain from measuring
  const auto tokenizer = open_tokenizer(recipe.tokenizer);
  const auto device = open_device(recipe);
  Stream& on = device->stream("compute");
  ParamStore params;
  Gpt model(on, params, gpt_config(recipe.model, vocabulary(recipe), recipe.dataset.seq_length),
            recipe.dataset.seq_length);
  params.materialize(on, DType::f32, false);
  load_weights(on, params, found->path);
  options.window = recipe.dataset.seq_length;
  generate(on, model, *tokenizer, prompt, options, emit);
}

}  // namespace mtrain
