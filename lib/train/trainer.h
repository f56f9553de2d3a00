// One rank's training: model, optimizer, data, and the training step. lib/run decides when to log,
// to evaluate and to save a checkpoint.
#pragma once
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "checkpoint/train_checkpoint.h"
#include "comm/host_collectives.h"
#include "comm/world.h"
#include "data/dataset/batch.h"
#include "device/device.h"
#include "model/experts/experts_of_step.h"
#include "model/gpt.h"
#include "ops/reduce.h"
#include "optim/loss_scaler.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/spike_guard.h"
#include "parallel/apply_parallelism.h"
#include "parallel/data/data_parallel.h"
#include "pipeline/pipeline.h"
#include "plan/run_plan.h"
#include "tensor/host_copy.h"
#include "train/expert_stats.h"
#include "train/micro_batch_graphs.h"
#include "train/router_state.h"

namespace mtrain::train {

struct StepStats {
  int64_t step = 0;     // the number of the step just made, from 1
  double loss = 0;      // nats per unmasked token, mean over the global batch
  float grad_norm = 0;  // before clipping
  float lr = 0;
  double loss_scale = 1;    // the scale that this step used
  bool overflowed = false;  // fp16 gradients overflowed, and nothing was updated
  bool skipped = false;     // for any other reason (train.on_spike), and nothing was updated
  double norm_median = 0;   // of the norms before (optim::SpikeGuard); 0: unknown
  int64_t tokens = 0;       // tokens of the global batch, masked ones included
  int64_t samples = 0;      // of all steps up to this one
  // The length of a token's document, as a mean over the tokens of this data-parallel rank. It is
  // the sample's length if documents are not packed.
  int64_t mean_document_length = 0;
  std::optional<ExpertStats> experts = {};  // absent for a dense model
  // The loss of each depth of multi-token prediction, like `loss`, which has no part of them.
  std::vector<double> mtp_losses = {};
  // When the step ended, as the host has seen it, which may have enqueued the next one meanwhile.
  std::chrono::steady_clock::time_point ended = {};
};

// The members of a Trainer, made by build_trainer(). They may refer to members above them.
struct TrainerParts {
  Device& device;
  Stream& compute;
  RunPlan plan;
  comm::World world;
  comm::HostCollectives control;
  std::unique_ptr<model::ParamStore> params;
  model::ModelImpls impls;
  std::unique_ptr<pipeline::Pipeline> pipeline;
  std::unique_ptr<model::DataParallel> data_parallel;
  std::unique_ptr<MicroBatchGraphs> graphs;  // null if the plan has no graphs
  std::unique_ptr<optim::Optimizer> optimizer;
  RouterState routers;
  std::shared_ptr<const data::Dataset> data;
};

// A time of the host.
struct HostInterval {
  std::chrono::steady_clock::time_point begin, end;
};

class Trainer {
 public:
  explicit Trainer(TrainerParts parts);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains on the next global batch. If the loss or a gradient is not finite, or the gradient is a
  // spike (plan::SpikeOptions), nothing is updated. It then throws RunError, or all ranks skip the
  // step. They skip it if the options say so, but not SpikeGuard::kMostInRow times in a row. A step
  // that is not finite counts as an update if neither skipping nor the checks of plan::TrainOptions
  // are on. In fp16 a non-finite gradient does not throw: all ranks skip the update and lower the
  // loss scale.
  //
  // With `run_ahead` the micro-batches of the next step may be enqueued before the host waits for
  // this step's loss, and the device then does not wait for the host. Results do not depend on it.
  // All ranks must pass the same value. Pass true if the next call is step(), too: evaluate(),
  // change_weights(), set_progress() and checkpoint_parts() drop what was enqueued, and the next
  // step() enqueues it again. Between the two calls, weights change by change_weights() alone. If
  // the next step cannot begin, several ranks fail at once, and one rank in its next step().
  StepStats step(bool run_ahead = false);
  // Replaces the first step on a recording device, in a fraction of its time: calls the hooks of
  // data parallelism as one micro-batch or two do, but without its computations, and enqueues the
  // update. step() then enqueues what it does after a first step, unless that changes what layers
  // enqueue: scales of 8-bit linears have a history then, and routers may have tables.
  void skip_first_step();
  // Makes a recording device skip stages of this rank's pipeline: later steps enqueue neither their
  // computations nor their messages, and do not reduce their gradients. Their weights are gathered
  // and updated.
  void skip_stages(const std::set<int64_t>& stages);
  // Returns the validation loss in nats per unmasked token, over all ranks' batches.
  double evaluate(const data::ValidationLoader& batches);
  // Sets weights outside of a step. `write` sets those that this rank owns
  // (ParamStore::set_master). All ranks must call it.
  void change_weights(const std::function<void()>& write);

  // When the host has made batches during the last step: its own, or those of the next one.
  const std::vector<HostInterval>& data_loads() const { return loads_; }

  int64_t steps_done() const { return step_; }
  int64_t samples_done() const { return samples_; }
  // The last step of the run. It differs from TrainOptions::steps if the recipe gives epochs, and
  // the size of the batch has changed.
  int64_t last_step() const { return last_step_; }
  // Sets the progress from which a resumed run continues.
  void set_progress(const checkpoint::TrainProgress& progress);
  checkpoint::TrainProgress progress() const;
  // All ranks must call it. With `to_read` the caller changes none of the parts: then only the next
  // update waits for earlier copies.
  checkpoint::CheckpointParts checkpoint_parts(bool to_read = false);
  // Makes whatever next writes weights, optimizer state or the routers' state wait for `event`: the
  // end of copies that read them (checkpoint::Snapshot). The device waits, not the host.
  void hold_updates_until(const Event& event) { copied_.push_back(event); }
  // `hook` is called for each gradient of a micro-batch when it is complete on this rank, before it
  // is reduced. Tests use it to make gradients overflow.
  void set_gradient_hook(std::function<void(model::Parameter&)> hook) {
    on_gradients_ = std::move(hook);
  }

  const RunPlan& plan() const { return plan_; }
  Device& device() { return device_; }
  Stream& compute() { return compute_; }
  comm::World& world() { return world_; }
  const comm::HostCollectives& control() const { return control_; }
  model::ParamStore& params() { return *params_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  model::DataParallel& data_parallel() { return *data_parallel_; }
  model::TensorParallel& tensor_parallel() { return *impls_.tensor; }
  const pipeline::Pipeline& pipeline() const { return *pipeline_; }
  MicroBatchGraphs* graphs() { return graphs_.get(); }  // null if the plan has no graphs
  model::Quantizer* quantizer() { return impls_.quantizer.get(); }  // null without 8-bit linears

 private:
  // The tokens of a global batch.
  struct TokenCount {
    int64_t labels = 0;                 // unmasked
    std::vector<int64_t> further = {};  // the same for each depth of multi-token prediction
    int64_t tokens = 0;                 // without padding
  };
  // A step whose micro-batches are enqueued, and nothing that comes after them.
  struct Begun {
    int64_t number = 0;  // of the step; 0: there is none
    std::vector<data::Batch> batches;
    TokenCount count;
    Tensor losses;  // as run_micro_batches() returns them
    std::chrono::nanoseconds host_wait{0};
  };
  struct GradScales {
    float loss = 1;
    std::vector<float> depths;  // of multi-token prediction
  };
  Begun begin_step(int64_t number);
  // Calls the hooks of data parallelism for the passes of a flush's first micro-batches.
  void call_hooks_of_passes(int64_t micro_batches);
  // Enqueues what comes after the micro-batches, up to the update.
  ops::Clip update(const Begun& step, float lr);
  // Makes `compute` wait for the events of hold_updates_until().
  void await_copies() {
    for (const Event& event : std::exchange(copied_, {})) compute_.wait(event);
  }
  // Begins the next step, if that does not need the result of the current one. On one rank a
  // failure is thrown by the next step().
  void begin_next(int64_t number);
  // Sets result_seen_ if the result of the current step is complete for the first time.
  void look_at_result();
  // Completes the reductions of a step that was begun, and forgets it. Returns whether there was
  // one.
  bool drop_begun();
  // Counts the tokens in the global batch of this step, over all ranks.
  TokenCount count_tokens(int64_t step, const std::vector<data::Batch>& batches);
  // Returns this rank's micro-batches of a step's global batch.
  std::vector<data::Batch> global_batch(int64_t step);
  // Makes the batch of the next step, if there is one, while the device works on the current step.
  // Begins to count its tokens on all ranks.
  // A batch depends only on the samples before it. Preparing one therefore does not change the
  // progress that checkpoints save.
  void prepare_batch(int64_t step);
  // Returns the part of a micro-batch with the positions of this context-parallel rank.
  data::Batch share_of(data::Batch whole) const;
  // Adds gradients to the parameters' main gradients, which this clears first if it
  // `finishes_step`. The first element of the result is the summed loss of this rank's
  // micro-batches, or zero on ranks without the last stage. If the model has experts,
  // ExpertsOfStep::loss_2 follows. Then come the losses of the depths of multi-token prediction. If
  // not `finishes_step`, unsharded gradients are not reduced;
  // sharded gradients are, unless their reduction is deferred.
  Tensor run_micro_batches(const std::vector<data::Batch>& batches, int64_t step,
                           const GradScales& grad_scales, bool finishes_step = true);
  [[noreturn]] void explain_non_finite(const std::vector<data::Batch>& batches, int64_t step);
  Tensor losses_of_step();               // what run_micro_batches() returns
  int64_t global_micro_batches() const;  // micro-batches of a step on all data-parallel ranks
  model::ExpertsOfStep experts_of_step(const Tensor& loss_2);
  // Reduce the gradients and losses of a step over all ranks. They are then those of the global
  // batch.
  void finish_grads();
  void sum_losses(const Tensor& losses);
  ops::Clip clip_grads(const Tensor& loss, const ops::ClipLimits& limits);
  void end_float8_step(const Tensor& grad_scale);
  // Returns the step's statistics of experts from results_; nothing for a dense model. Updates the
  // routers' state if the weights were `updated`.
  std::optional<ExpertStats> end_experts_step(bool updated, std::chrono::nanoseconds host_wait);
  float grad_scale(int64_t label_tokens) const;
  GradScales grad_scales(const TokenCount& count) const;
  Tensor losses_of_depths(const Tensor& losses) const;  // the last part of run_micro_batches()
  std::vector<double> mtp_losses(const TokenCount& count) const;  // of results_
  // Why a step has updated nothing.
  enum class Skip { no, overflow, spike };
  // Throws RunError if training must stop.
  Skip judge(double loss, float norm, const std::vector<data::Batch>& batches, int64_t step);
  [[noreturn]] void stop_at_spike(float norm, int64_t step);
  // Copies micro-batches to the device: into the tensors of `into` where sizes are equal, else into
  // new ones.
  std::vector<model::MicroBatch> upload(const std::vector<data::Batch>& batches,
                                        const std::vector<model::MicroBatch>& into = {});
  model::MicroBatch upload(const data::Batch& batch, const model::MicroBatch& into);

  Device& device_;
  Stream& compute_;
  const RunPlan plan_;
  comm::World world_;
  const comm::HostCollectives control_;
  std::unique_ptr<model::ParamStore> params_;
  model::ModelImpls impls_;
  std::unique_ptr<pipeline::Pipeline> pipeline_;
  std::unique_ptr<model::DataParallel> data_parallel_;
  std::unique_ptr<MicroBatchGraphs> graphs_;
  Tensor graphs_loss_;  // the loss that graphs add to
  // The micro-batches of the last step, if a graph has those of a step. The next step's are copied
  // to the same tensors.
  std::vector<model::MicroBatch> step_inputs_;
  parallel::SequenceShare share_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::LrSchedule schedule_;
  optim::LossScaler scaler_;
  optim::SpikeGuard spikes_;
  data::BatchLoader loader_;
  RouterState routers_;
  model::ExpertsOfStep experts_;           // of the last step; unused by a dense model
  std::chrono::nanoseconds host_wait_{0};  // ExpertsOfStep::host_wait of the last step
  std::vector<HostInterval> loads_;        // data_loads()
  int64_t prepared_step_ = 0;              // the step of prepared_; 0: none
  std::vector<data::Batch> prepared_;
  int64_t counted_step_ = 0;  // the step whose tokens DataParallel::begin_sum() counts; 0: none
  Begun begun_;
  std::exception_ptr begin_failure_;  // why begin_next() has failed
  std::vector<Event> copied_;         // of hold_updates_until(), until the next update
  tensor::HostCopy results_;  // of a step: loss, gradient norm, the experts' sums and losses
  std::optional<std::chrono::steady_clock::time_point> result_seen_;
  std::function<void(model::Parameter&)> on_gradients_;
  int64_t step_ = 0;
  int64_t last_step_ = 0;
  int64_t updates_ = 0;  // steps that were not skipped; the optimizer counts these
  // Samples of the steps, and of the updates; data and learning rate count these.
  int64_t samples_ = 0, updated_samples_ = 0;
};

}  // namespace mtrain::train
