// Runs a micro-batch's forward and backward as one graph, which is captured once they have run as
// they are, and replayed from then on. What differs between micro-batches lies in device memory:
// inputs and labels, the gradient's scale, the keys of dropout, the loss.
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
  // `plan` says which micro-batches run as graphs. The pipeline has one stage.
  MicroBatchGraphs(Stream& compute, model::ParamStore& params, pipeline::Pipeline& pipeline,
                   const plan::CudaGraphs& plan, int64_t layers);

  // Does what Pipeline::run does, micro-batch by micro-batch. work.loss is one tensor in all steps.
  // Where this step is not `steady`, later ones launch something else, and no graph is made of it.
  void run(const pipeline::MicroBatches& work, bool steady = true);

  // While the result lives, allocations draw on the graphs' memory; for work that never runs beside
  // a micro-batch. Null where there are no graphs.
  std::unique_ptr<device::Allocator::Open> share_memory() const;

  // Launches go one by one from here on; print_cuda_graphs() tells the user `why`.
  void turn_off(std::string why);
  const plan::CudaGraphs& plan() const { return plan_; }  // with what turn_off() has changed
  // Returns the reason after a capture has failed, once; else an empty text.
  std::string take_failure() { return std::exchange(failure_, {}); }
  int64_t replays() const { return replays_; }

 private:
  struct Captured {
    device::Graph graph;
    model::MicroBatch inputs;              // the graph reads these
    std::vector<model::Parameter*> ready;  // whose gradients became whole, in that order
    std::vector<bool> fresh;               // what fresh() is afterwards
  };
  // The sizes of the batch, and which parameters' gradients are overwritten.
  using Key = std::pair<std::vector<int64_t>, std::vector<bool>>;

  bool possible(const model::MicroBatch& batch, int64_t k) const;
  bool run_as_graph(const pipeline::MicroBatches& one);  // false: there is no graph for it
  void capture(const pipeline::MicroBatches& one, const Key& key);
  std::vector<bool> fresh();  // Parameter::fresh of every parameter
  void set_fresh(const std::vector<bool>& fresh);

  Stream& compute_;
  model::ParamStore& params_;
  pipeline::Pipeline& pipeline_;
  plan::CudaGraphs plan_;
  std::string failure_;
  std::shared_ptr<device::MemoryPool> pool_;
  model::GraphInputs values_;
  std::map<Key, int64_t> runs_;  // how often each ran without a graph
  std::map<Key, Captured> graphs_;
  int64_t replays_ = 0;
};

}  // namespace mtrain::train
