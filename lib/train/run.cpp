#include "train/run.h"

#include <sched.h>
#include <chrono>
#include <cstdlib>
#include <optional>

#include "base/ignore_sigpipe.h"
#include "base/log.h"
#include "base/strings.h"
#include "comm/process/process_world.h"
#include "device/flight_recorder.h"
#include "launch/error_file.h"
#include "plan/run_plan.h"
#include "train/agreement.h"
#include "train/bf16_choice.h"
#include "train/data_setup.h"
#include "train/fault.h"
#include "train/interrupt.h"
#include "train/model_setup.h"
#include "train/reporter.h"
#include "train/run_folder.h"
#include "train/run_trace.h"
#include "train/snapshot.h"

namespace mtrain {

namespace {

// Cores that this process may use, shared with the other ranks of the host.
int default_threads(const Job& job) {
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, cores / job.local_size);
}

// CUDA reads it when it starts, which communication may cause before there is a device. What the
// user has set stays.
void set_connections(const Recipe& r, const Overlap& overlap) {
  if (r.train.device != DeviceChoice::cuda) return;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(overlap.cuda_device_max_connections).c_str(),
         0);
}

std::unique_ptr<Device> open_device(const Recipe& r, const Job& job, int64_t norm_sm_margin = 0) {
  const DeviceOptions options{.stream_sanitizer = r.debug.stream_sanitizer,
                              .compute_slowdown = r.debug.compute_slowdown,
                              .norm_sm_margin = norm_sm_margin,
                              .fixed_attention_order = r.debug.deterministic};
  if (r.train.device == DeviceChoice::cuda) return Device::cuda(job.local_rank, options);
  const int threads = r.train.threads ? int(r.train.threads) : default_threads(job);
  return Device::cpu(threads, options);
}

ProcessBackend process_backend(CommBackend backend) {
  switch (backend) {
    case CommBackend::gloo: return ProcessBackend::gloo;
    case CommBackend::nccl: return ProcessBackend::nccl;
    default: return ProcessBackend::automatic;
  }
}

World open_world(const Recipe& r, const Job& job) {
  std::optional<int> gpu;
  if (r.train.device == DeviceChoice::cuda) gpu = job.local_rank;
  return process_world({.rank = job.rank,
                        .size = job.size,
                        .restarts = job.restarts,
                        .master_addr = job.master_addr,
                        .master_port = job.master_port,
                        .timeout = std::chrono::duration<double>(r.comm.timeout_s),
                        .backend = process_backend(r.comm.backend),
                        .cuda_device = gpu,
                        .link = {r.comm.link.latency_us, r.comm.link.gbps},
                        .recipe = print_recipe(r, false)});
}

// One rank's run. What the user sees and what is written comes from rank 0.
class Training {
 public:
  Training(const Recipe& recipe, const RunOptions& options, const RunPlan& plan, int64_t vocab,
           World world, std::optional<CheckpointRef> start)
      : recipe_(recipe),
        job_(options.job),
        start_(std::move(start)),
        device_(open_device(recipe, options.job, plan.overlap.layernorm_sm_margin)),
        config_(gpt_config(recipe.model, vocab, plan.sample_length, plan.layout.tp)),
        data_(open_training_data(recipe, config_.vocab)),
        validation_data_(open_validation_data(recipe, config_.vocab)),
        trainer_(*device_, recipe, plan, config_, data_, std::move(world)) {
    if (recipe.debug.fault.at && options.job.restarts == 0)
      fault_.emplace(recipe.debug.fault, trainer_.world().rank(), *device_);
    if (options.profile && trainer_.graphs())
      trainer_.graphs()->turn_off("--profile times every launch");
    if (recipe.debug.trace) trace_.emplace(trainer_, *recipe.debug.trace);
    if (trainer_.world().rank() == 0)
      reporter_.emplace(trainer_, recipe, options.profile, trace_ ? &trace_->sink() : nullptr);
    if (validation_data_)
      validation_.emplace(validation_data_,
                          recipe.validation.steps * recipe.train.global_batch_size,
                          LoaderOptions{.micro_batch = plan.layout.micro_batch,
                                        .dp_rank = trainer_.data_parallel().rank(),
                                        .dp_size = trainer_.data_parallel().size()});
  }

  void run() {
    try {
      run_steps();
    } catch (const std::exception& e) {
      trainer_.world().abort(e.what());  // peers must not wait for their timeout
      constexpr int kLaunches = 20;
      const auto launches = device_->recorder().lines(kLaunches);
      write_error_file(e, launches);
      if (!dynamic_cast<const UserError*>(&e)) tell_last_launches(launches);
      throw;
    }
  }

 private:
  void run_steps() {
    resume();
    if (reporter_) {
      reporter_->start();
      note(data_->note());
    } else if (trace_) {
      device_->set_timing_sink(&trace_->sink());
    }
    const Interrupt interrupt;
    const auto started = std::chrono::steady_clock::now();
    std::string end;  // why the run ends before its last step
    while (end.empty() && trainer_.steps_done() < recipe_.train.steps) {
      if (fault_) fault_->before_step(trainer_.steps_done() + 1);
      if (trace_) trace_->step_begins();
      const StepStats stats = trainer_.step();
      if (trace_) trace_->step_done(stats.step);
      if (reporter_) reporter_->step(stats);
      if (trainer_.graphs()) note(trainer_.graphs()->take_failure());
      const int64_t step = trainer_.steps_done();
      if (due(recipe_.validation.every_steps, step) && step < recipe_.train.steps) evaluate();
      if (due(recipe_.checkpoint.every_steps, step)) save();
      if (fault_) fault_->after_step(step);
      end = early_end(interrupt, std::chrono::steady_clock::now() - started);
    }
    if (end.empty()) evaluate();
    note(end);
    if (recipe_.checkpoint.at_end && saved_ != trainer_.steps_done()) save();
    if (trace_) note(trace_->finish());
    if (reporter_) reporter_->finish();
    all_ranks_here();  // rank 0 serves the others until they are done
  }

  // All ranks give the same answer but for its words.
  std::string early_end(const Interrupt& interrupt, std::chrono::duration<double> elapsed) {
    const auto& t = recipe_.train;
    const char* then = recipe_.checkpoint.at_end ? "saving and ending" : "ending";
    if (t.exit_interval && due(*t.exit_interval, trainer_.steps_done()))
      return fmt::format("train.exit_interval={}: {}", *t.exit_interval, then);
    const bool late = t.exit_duration_in_mins && elapsed.count() > *t.exit_duration_in_mins * 60;
    if (!trainer_.any_rank(interrupt.signal() || late)) return "";
    if (late)
      return fmt::format("train.exit_duration_in_mins={}: {}", *t.exit_duration_in_mins, then);
    return interrupt.signal() ? fmt::format("signal {}: {}", interrupt.signal(), then)
                              : fmt::format("another rank was told to end: {}", then);
  }

  static void tell_last_launches(const std::vector<std::string>& lines) {
    std::string text = "the run failed; the last launches were:";
    for (const std::string& line : lines) text += "\n  " + line;
    log::info(text);
  }

  static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }
  void note(const std::string& text) {
    if (reporter_ && !text.empty()) reporter_->note(text);
  }
  void all_ranks_here() { trainer_.any_rank(false); }

  // Every rank has looked at its files before any of them changes.
  void agree_on_files() {
    const char* shared = "give all ranks the same files: a folder that all hosts share";
    agree(trainer_.control(), "checkpoint to continue from",
          start_ ? fmt::format("{} (step {})", start_->path.string(), start_->step) : "none",
          shared);
    agree(trainer_.control(), "dataset.train", describe(*data_), shared);
    if (validation_data_)
      agree(trainer_.control(), "dataset.validation", describe(*validation_data_), shared);
  }

  void resume() {
    agree_on_files();
    if (reporter_) make_run_folder(recipe_);
    const std::string restart = job_.restarts ? fmt::format("restart {}: ", job_.restarts) : "";
    if (start_) {
      load_snapshot(trainer_, recipe_, start_->path);
      saved_ = trainer_.steps_done();
      note(fmt::format("{}continuing after step {} of {}", restart, saved_, start_->path.string()));
    } else {
      choose_bf16_arithmetic(*device_, trainer_.control(), recipe_);
      if (job_.restarts)
        note(restart + "nothing is saved yet, starting at step 1");
      else if (recipe_.checkpoint.load)
        note("checkpoint.load=latest: nothing to continue from, starting at step 1");
    }
    const auto job_ids = trainer_.control().texts(job_.id);
    if (!reporter_) return;
    for (const auto& line : set_aside_abandoned(recipe_, start_)) note(line);
    write_job(recipe_, job_ids, job_.restarts, start_);
  }

  void evaluate() {
    if (!validation_) return;
    const double loss = trainer_.evaluate(*validation_);
    if (reporter_) reporter_->validation(loss, validation_->samples());
  }

  void save() {
    saved_ = trainer_.steps_done();
    const auto path = save_snapshot(trainer_, recipe_, recipe_.checkpoint.dir,
                                    fault_ ? fault_->in_save(saved_) : nullptr);
    note(fmt::format("saved {}", path.string()));
  }

  const Recipe& recipe_;
  const Job job_;
  std::optional<CheckpointRef> start_;
  std::unique_ptr<Device> device_;
  GptConfig config_;
  std::shared_ptr<const Dataset> data_, validation_data_;  // the second null where none is named
  Trainer trainer_;
  std::optional<ValidationLoader> validation_;
  std::optional<RunTrace> trace_;
  std::optional<Fault> fault_;
  std::optional<Reporter> reporter_;  // of rank 0
  int64_t saved_ = 0;                 // step of the newest checkpoint
};

}  // namespace

void run_training(const Recipe& recipe, const RunOptions& options) {
  const IgnoreSigpipe pipes;
  // The vocabulary, which a tokenizer's file may decide, only matters for memory.
  set_connections(recipe, make_plan(recipe, options.job.size, 0).overlap);
  World world = open_world(recipe, options.job);
  try {
    const auto start = claim_run_folder(recipe, options.job);
    const int64_t vocab = vocabulary(recipe);
    Training(recipe, options, make_plan(recipe, options.job.size, vocab), vocab, world, start)
        .run();
  } catch (const std::exception& e) {
    world.abort(e.what());  // peers wait for this rank, or will
    throw;
  }
}

void generate_from_run(const std::string& run, std::string_view prompt, GenerateOptions options,
                       const std::function<void(std::string_view)>& emit) {
  const auto found = locate_checkpoint(run);
  if (!found)
    throw UserError(fmt::format("{} holds no complete checkpoint", run),
                    "give a run folder or a checkpoint folder");
  const Recipe recipe = load_saved_recipe(found->path);
  const auto tokenizer = open_tokenizer(recipe.tokenizer);
  const auto device = open_device(recipe, {});
  Stream& on = device->stream(StreamKind::compute);
  ParamStore params;
  Gpt model(on, params, gpt_config(recipe.model, vocabulary(recipe), sample_length(recipe)),
            sample_length(recipe));
  params.materialize(on, DType::f32, false);
  load_weights(on, params, found->path);
  options.window = sample_length(recipe);
  generate(on, model, *tokenizer, prompt, options, emit);
}

}  // namespace mtrain
