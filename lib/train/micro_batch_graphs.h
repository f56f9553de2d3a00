// Runs a micro-batch's forward and backward as one CUDA graph. Of each kind of micro-batch, the
// first one runs without a graph. The next one is captured, and the graph is replayed from then on.
// Values that differ between micro-batches are in device memory: inputs, labels, gradient scales,
// dropout keys, losses and the routers' counts.
#pragma once
#include <cstdint>
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

namespace mtrain::train {

class MicroBatchGraphs {
 public:
  // `plan` selects the micro-batches that run as graphs. The pipeline must have one stage. The
  // hooks of the micro-batches are those of `data_parallel`.
  MicroBatchGraphs(Stream& compute, model::ParamStore& params, pipeline::Pipeline& pipeline,
                   model::DataParallel& data_parallel, const plan::CudaGraphs& plan,
                   int64_t layers);

  // Does what Pipeline::run() does, micro-batch by micro-batch. work.loss and the tensors of
  // work.experts must be the same memory in all steps. If not `steady`, later steps launch
  // different kernels from this one, and no graph runs.
  void run(const pipeline::MicroBatches& work, bool steady = true);

  // While the result lives, allocations use the graphs' memory. Call it only for work that never
  // runs at the same time as a micro-batch. Returns null if there are no graphs.
  std::unique_ptr<device::Allocator::Open> share_memory() const;

  // While graphs are held, micro-batches run without them: later steps will launch other kernels.
  void hold(bool held) { held_ = held; }

  // Turns graphs off for the rest of the run. print_cuda_graphs() prints `why`.
  void turn_off(std::string why);
  const plan::CudaGraphs& plan() const { return plan_; }  // turn_off() changes it
  // Returns why a capture has failed, and an empty text afterwards or if none has.
  std::string take_failure() { return std::exchange(failure_, {}); }
  int64_t replays() const { return replays_; }

 private:
  struct Captured {
    device::Graph graph;
    model::MicroBatch inputs;              // the graph reads these tensors
    std::vector<model::Parameter*> ready;  // in the order in which their gradients are complete
    std::vector<bool> fresh;               // the value of fresh() after a replay
    model::HookState hooks;                // the state of the hooks after a replay
  };
  // The micro-batch's sizes, which optional inputs it has, where gradients are, the state of the
  // hooks, and the value of fresh() before it. Fresh gradients are overwritten, so the kernels
  // differ.
  using Key = std::pair<std::vector<int64_t>, std::vector<bool>>;

  bool possible(const model::MicroBatch& batch, int64_t k) const;
  // Returns false, and does nothing, if there is no graph for the micro-batch.
  bool run_as_graph(const pipeline::MicroBatches& one);
  void capture(const pipeline::MicroBatches& one, const Key& key);
  std::vector<bool> fresh();  // Parameter::fresh of every parameter
  void set_fresh(const std::vector<bool>& fresh);

  Stream& compute_;
  model::ParamStore& params_;
  pipeline::Pipeline& pipeline_;
  model::DataParallel& data_parallel_;
  plan::CudaGraphs plan_;
  std::string failure_;
  bool held_ = false;
  std::shared_ptr<device::MemoryPool> pool_;
  model::GraphInputs values_;
  std::map<Key, int64_t> runs_;  // how often a micro-batch of this key ran without a graph
  std::map<Key, Captured> graphs_;
  int64_t replays_ = 0;
};

}  // namespace mtrain::train
