// One rank's training: model, optimizer and data, and the step that moves them on. Logging,
// evaluation schedules and checkpoints live around it, in lib/run.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/train_checkpoint.h"
#include "comm/host_collectives.h"
#include "comm/world.h"
#include "data/dataset/batch.h"
#include "device/device.h"
#include "model/experts/experts_of_step.h"
#include "model/gpt.h"
#include "optim/loss_scaler.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "parallel/apply_parallelism.h"
#include "parallel/data/data_parallel.h"
#include "pipeline/pipeline.h"
#include "plan/run_plan.h"
#include "train/expert_stats.h"
#include "train/micro_batch_graphs.h"
#include "train/router_state.h"

namespace mtrain::train {

struct StepStats {
  int64_t step = 0;     // the number of the step just made, from 1
  double loss = 0;      // nats per unmasked token, mean over the global batch
  float grad_norm = 0;  // before clipping
  float lr = 0;
  double loss_scale = 1;    // of this step
  bool overflowed = false;  // in fp16: nothing was updated
  int64_t tokens = 0;       // tokens of the global batch, masked ones included
  // The length of a token's document, as a mean over the tokens of this data-parallel rank. It is
  // the sample's length if documents are not packed.
  int64_t mean_document_length = 0;
  std::optional<ExpertStats> experts = {};  // absent for a dense model
};

// The members of a Trainer, which build_trainer() makes. They refer to members before them.
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

class Trainer {
 public:
  explicit Trainer(TrainerParts parts);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains on the next global batch. Throws RunError, with nothing updated, if the loss or a
  // gradient is not finite, and the plan's options of the training say that this is checked. If it
  // is not checked, nothing is updated, and the step counts. In fp16 a gradient that is not finite
  // skips the update on all ranks and lowers the loss scale instead.
  StepStats step();
  // Returns the validation loss in nats per unmasked token, over all ranks' batches.
  double evaluate(const data::ValidationLoader& batches);
  // Sets weights outside of a step. `write` sets those that this rank owns
  // (ParamStore::set_master). All ranks call it.
  void change_weights(const std::function<void()>& write);

  int64_t steps_done() const { return step_; }
  // A resumed run continues from here.
  void set_progress(const checkpoint::TrainProgress& progress);
  checkpoint::TrainProgress progress() const;
  checkpoint::CheckpointParts checkpoint_parts();
  // `hook` is called for each gradient of a micro-batch when it is complete on this rank, before it
  // is reduced. Tests make gradients overflow by it.
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
  // Returns this rank's micro-batches of a step's global batch.
  std::vector<data::Batch> global_batch(int64_t step);
  // Makes the batch of a step that may come next, while the device works on the step before it. A
  // batch is a function of its step's number, so that making one moves nothing on: a checkpoint
  // knows only the steps that are done.
  void prepare_batch(int64_t step);
  // Returns the positions of a micro-batch that this context-parallel rank has.
  data::Batch share_of(data::Batch whole) const;
  // Adds gradients to the parameters' main gradients. Returns the summed loss of this rank's
  // micro-batches, zero without the last stage, followed by ExpertsOfStep::loss_2 of a model with
  // experts. If not `finishes_step`, whole gradients are not
  // reduced; sharded gradients are, unless their reduction is deferred.
  Tensor run_micro_batches(const std::vector<data::Batch>& batches, int64_t step, float grad_scale,
                           bool finishes_step = true);
  [[noreturn]] void explain_non_finite(const std::vector<data::Batch>& batches, int64_t step);
  Tensor zero_losses();
  int64_t global_micro_batches() const;  // of all ranks, in a step
  model::ExpertsOfStep experts_of_step(const Tensor& loss_2);
  // Make the gradients and losses of a step those of the global batch.
  void finish_grads();
  void sum_losses(const Tensor& losses);
  ops::Clip clip_grads(const Tensor& loss);
  void end_float8_step();
  // Returns what the step has found about experts; nothing of a dense model. Their state is updated
  // if the step was `finite`.
  std::optional<ExpertStats> end_experts_step(bool finite);
  float grad_scale(int64_t counted) const;
  // Returns whether the gradients overflowed fp16. Throws RunError where training cannot continue.
  bool check_finite(double loss, float norm, const std::vector<data::Batch>& batches, int64_t step);
  std::vector<model::MicroBatch> upload(const std::vector<data::Batch>& batches);
  model::MicroBatch upload(const data::Batch& batch);

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
  parallel::SequenceShare share_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::LrSchedule schedule_;
  optim::LossScaler scaler_;
  data::BatchLoader loader_;
  RouterState routers_;
  model::ExpertsOfStep experts_;           // of the last step; unused by a dense model
  std::chrono::nanoseconds host_wait_{0};  // ExpertsOfStep::host_wait of the last step
  int64_t prepared_step_ = 0;              // the step of prepared_; 0: none
  std::vector<data::Batch> prepared_;
  std::function<void(model::Parameter&)> on_gradients_;
  int64_t step_ = 0;
  int64_t updates_ = 0;  // steps that were not skipped: they move the optimizer and its rate on
};

}  // namespace mtrain::train
