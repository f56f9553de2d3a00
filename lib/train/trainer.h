// One rank's training: model, optimizer and data, and the step that moves them on. Logging,
// evaluation schedules and checkpoints live around it, in run.cpp.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "comm/host_collectives.h"
#include "comm/world.h"
#include "data/batch.h"
#include "device/device.h"
#include "model/gpt.h"
#include "optim/adamw.h"
#include "optim/lr_schedule.h"
#include "parallel/data_parallel.h"
#include "pipeline/pipeline.h"
#include "plan/run_plan.h"
#include "train/micro_batch_graphs.h"
#include "train/parallel_setup.h"

namespace mtrain {

struct StepStats {
  int64_t step = 0;     // of the update just made, from 1
  double loss = 0;      // nats per unmasked token, mean over the global batch
  float grad_norm = 0;  // before clipping
  float lr = 0;
  int64_t tokens = 0;  // of the global batch, masked ones included
  // Length of the sequence that attention gives a token: of its document where packs are, as a mean
  // over the tokens of this data-parallel rank.
  int64_t attended = 0;
};

class Trainer {
 public:
  // `plan`, `config` and `data` come from the recipe (plan/run_plan.h, model_setup.h,
  // data_setup.h); weights are initialised from train.seed, alike on every rank of `world`.
  Trainer(Device& device, const Recipe& recipe, RunPlan plan, const GptConfig& config,
          std::shared_ptr<const Dataset> data, World world);
  // The same with the plan of that recipe, world and vocabulary.
  Trainer(Device& device, const Recipe& recipe, const GptConfig& config,
          std::shared_ptr<const Dataset> data, World world = World::alone());

  StepStats
  step();  // throws RunError, with nothing updated, when the loss or a gradient is not finite
  double evaluate(const ValidationLoader& batches);  // nats per token, over all ranks' batches
  // Whether any rank wants to: all get the same answer, as all must stop at the same step.
  bool any_rank(bool wants);
  // `write` sets weights from outside, each rank what it owns of them (ParamStore::set_master). All
  // ranks call it.
  void change_weights(const std::function<void()>& write);

  int64_t steps_done() const { return step_; }
  void set_steps_done(int64_t steps) { step_ = steps; }  // a resumed run goes on from here

  Device& device() { return device_; }
  Stream& compute() { return compute_; }
  ParamStore& params() { return params_; }
  AdamW& optimizer() { return adamw_; }
  const GptConfig& config() const { return config_; }
  const RunPlan& plan() const { return plan_; }
  // The parameters of the whole model, declared alone: their names and layout-free shapes.
  std::unique_ptr<ParamStore> declare_whole();
  World& world() { return world_; }
  const HostCollectives& control() const { return control_; }
  DataParallel& data_parallel() { return *data_parallel_; }
  const Pipeline& pipeline() const { return *pipeline_; }
  MicroBatchGraphs* graphs() { return graphs_.get(); }  // null where the recipe has none
  TensorParallel& tensor_parallel() { return *parts_.tensor; }
  Float8Scaling* fp8() { return parts_.fp8.get(); }  // null without 8-bit products

 private:
  friend class Diagnosis;
  std::vector<Batch> global_batch(int64_t step);  // this rank's share
  Batch share_of(Batch whole) const;
  // Where these do not finish a step, whole gradients stay this rank's own; sharded ones that are
  // not deferred travel all the same.
  Tensor run_micro_batches(const std::vector<Batch>& batches, int64_t step, float grad_scale,
                           bool finishes_step = true);
  Tensor zero_loss();
  float grad_scale(int64_t counted, size_t micro_batches) const;
  std::vector<MicroBatch> upload(const std::vector<Batch>& batches);
  MicroBatch upload(const Batch& batch);

  Device& device_;
  Stream& compute_;
  const Recipe& recipe_;
  const RunPlan plan_;
  World world_;
  const HostCollectives control_;
  ParamStore params_;
  ModelParts parts_;
  const GptConfig config_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<DataParallel> data_parallel_;
  std::unique_ptr<MicroBatchGraphs> graphs_;
  Tensor graphs_loss_;  // what they add to
  SequenceShare share_;
  AdamW adamw_;
  LrSchedule schedule_;
  BatchLoader loader_;
  int64_t step_ = 0;
};

}  // namespace mtrain
