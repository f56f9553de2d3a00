// Runs a micro-batch's forward and backward as one graph. The graph is captured after they have run
// once without it, and replayed from then on. What differs between micro-batches lies in device
// memory: inputs and labels, the gradient's scale, the keys of dropout, the loss.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/graph.h"
#include "model/graph_inputs.h"
#include "model/param/parameters.h"
#include "pipeline/pipeline.h"
#include "plan/cuda_graphs.h"

namespace mtrain::train {

class MicroBatchGraphs {
 public:
  // `plan` says which micro-batches run as graphs. The pipeline must have one stage.
  MicroBatchGraphs(Stream& compute, model::ParamStore& params, pipeline::Pipeline& pipeline,
                   const plan::CudaGraphs& plan, int64_t layers);

  // Does what Pipeline::run() does, micro-batch by micro-batch. work.loss must be the same tensor
  // in all steps. If not `steady`, later steps launch something else than this one, and no graph
  // runs.
  void run(const pipeline::MicroBatches& work, bool steady = true);

  // While the result lives, allocations use the graphs' memory. For work that never runs at the
  // same time as a micro-batch. Returns null if there are no graphs.
  std::unique_ptr<device::Allocator::Open> share_memory() const;

  // While graphs are held, micro-batches run without them: later steps will launch other kernels.
  void hold(bool held) { held_ = held; }

  // From here on nothing runs as a graph; print_cuda_graphs() tells the user `why`.
  void turn_off(std::string why);
  const plan::CudaGraphs& plan() const { return plan_; }  // turn_off() changes it
  // Returns the reason for which a capture has failed, once; else an empty text.
  std::string take_failure() { return std::exchange(failure_, {}); }
  int64_t replays() const { return replays_; }

 private:
  struct Captured {
    device::Graph graph;
    model::MicroBatch inputs;              // the graph reads these tensors
    std::vector<model::Parameter*> ready;  // in the order in which their gradients are complete
    std::vector<bool> fresh;               // the value of fresh() after a replay
  };
  // The sizes of the micro-batch, and fresh() before it: which gradients are overwritten.
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
  plan::CudaGraphs plan_;
  std::string failure_;
  bool held_ = false;
  std::shared_ptr<device::MemoryPool> pool_;
  model::GraphInputs values_;
  std::map<Key, int64_t> runs_;  // how often such a micro-batch ran without a graph
  std::map<Key, Captured> graphs_;
  int64_t replays_ = 0;
};

}  // namespace mtrain::train
