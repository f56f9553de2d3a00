// Runs micro-batches' forward and backward as CUDA graphs: each one as a graph, or all of a step as
// one (plan::CudaGraphs::full_step). Of each kind of graph, the first run is made of single
// launches. The next one is captured, and the graph is replayed from then on. Values that differ
// between runs are in device memory: inputs, labels, gradient scales, dropout keys, losses and the
// routers' counts. With full_step the step's update is a graph, too (UpdateGraph).
//
// The two stay separate graphs. The host can thus enqueue the micro-batches of the next step before
// it has seen this one's result, and it can still drop them. A copy of weights that is being saved
// delays the update alone.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/graph.h"
#include "model/data_parallel.h"
#include "model/graph_inputs.h"
#include "model/param/parameters.h"
#include "pipeline/pipeline.h"
#include "plan/cuda_graphs.h"
#include "train/update_graph.h"

namespace mtrain::train {

class MicroBatchGraphs {
 public:
  // `plan` selects the micro-batches that run as graphs. The pipeline must have one stage. The
  // hooks of the micro-batches are those of `data_parallel`.
  MicroBatchGraphs(Stream& compute, model::ParamStore& params, pipeline::Pipeline& pipeline,
                   model::DataParallel& data_parallel, optim::Optimizer& optimizer,
                   const plan::CudaGraphs& plan, int64_t layers);

  // Calls `begin`, which enqueues what comes before a step's micro-batches, and does what
  // Pipeline::run() does. work.loss and the tensors of work.experts must be the same memory in all
  // steps. If not `steady`, later steps launch different kernels from this one, and no graph runs.
  void run(const pipeline::MicroBatches& work, const std::function<void()>& begin,
           bool steady = true);
  // Runs the step's update, as a graph if the plan has one for it.
  ops::Clip run_update(const UpdateGraph::Update& update, const UpdateGraph::Enqueue& enqueue);

  // While the result lives, allocations use the graphs' memory. Call it only for work that never
  // runs at the same time as a micro-batch. Returns null if there are no graphs.
  std::unique_ptr<device::Allocator::Open> share_memory() const;

  // While graphs are held, micro-batches run without them: later steps will launch other kernels.
  void hold(bool held) { held_ = held; }

  // Turns graphs off for the rest of the run. print_cuda_graphs() prints `why`.
  void turn_off(std::string why);
  const plan::CudaGraphs& plan() const { return plan_; }  // turn_off() changes it
  // Returns why captures have failed, and an empty text afterwards or if none has.
  std::string take_failure() { return std::exchange(failure_, {}); }
  int64_t replays() const { return replays_; }  // of graphs of micro-batches
  int64_t update_replays() const { return update_ ? update_->replays() : 0; }

 private:
  struct Captured {
    device::Graph graph;
    std::vector<model::MicroBatch> inputs;  // the graph reads these tensors
    std::vector<model::Parameter*> ready;   // in the order in which their gradients are complete
    std::vector<bool> fresh;                // the value of fresh() after a replay
    model::HookState hooks;                 // the state of the hooks after a replay
  };
  // The micro-batches' sizes, which optional inputs they have, where gradients are, the state of
  // the hooks, and the value of fresh() before. Fresh gradients are overwritten, so the kernels
  // differ. A graph of a step makes them fresh itself, and its key lacks the value.
  using Key = std::pair<std::vector<int64_t>, std::vector<bool>>;

  // What one graph has: these micro-batches of a step, and what comes before them if it has all.
  struct Part {
    const pipeline::MicroBatches& work;
    size_t first, count;
    const std::function<void()>* begin;  // null: it was called already
  };
  bool possible(const Part& part) const;
  // Returns false, and does nothing, if there is no graph for these micro-batches.
  bool run_as_graph(const Part& part);
  bool has_room();  // for another graph
  // From now on each micro-batch is a graph, and updates are single launches.
  void turn_to_micro_batches(const std::string& why);
  void note_failure(const std::string& failure);  // for take_failure()
  void capture(const Part& part, const Key& key);
  Key key_of(const Part& part);
  // Runs micro-batch k of the step. Its launches read `inputs`, unless this is null.
  void run_one(const pipeline::MicroBatches& work, size_t k, model::GraphInputs* inputs,
               const model::WgradQueue::OnReady& on_ready);
  std::vector<bool> fresh();  // Parameter::fresh of every parameter
  void set_fresh(const std::vector<bool>& fresh);

  Stream& compute_;
  model::ParamStore& params_;
  pipeline::Pipeline& pipeline_;
  model::DataParallel& data_parallel_;
  plan::CudaGraphs plan_;
  const int64_t max_dropouts_;
  std::string failure_;
  bool full_ = false;  // no further graphs are captured
  bool held_ = false;
  std::shared_ptr<device::MemoryPool> pool_;
  std::deque<model::GraphInputs> values_;  // of each micro-batch of a graph
  std::map<Key, int64_t> runs_;  // how often micro-batches of this key ran without a graph
  std::map<Key, Captured> graphs_;
  std::unique_ptr<UpdateGraph> update_;  // null if the update is not a graph
  int64_t replays_ = 0;
};

}  // namespace mtrain::train
