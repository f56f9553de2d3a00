// A micro-batch's forward and backward as one graph: captured once it has run as it is, and
// replayed from then on. What differs between micro-batches is in device memory: inputs and
// labels, the gradient's scale, the keys of dropout, the loss.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/graph.h"
#include "model/parameters.h"
#include "model/replayed.h"
#include "pipeline/pipeline.h"
#include "plan/cuda_graphs.h"

namespace mtrain {

class MicroBatchGraphs {
 public:
  // `plan`: which micro-batches. The pipeline has one stage.
  MicroBatchGraphs(Stream& compute, ParamStore& params, Pipeline& pipeline, const CudaGraphs& plan,
                   int64_t layers);

  // As Pipeline::run, micro-batch by micro-batch. work.loss is the same tensor in every step.
  // `steady`: later steps launch the same; else this one is no model for graphs.
  void run(const MicroBatches& work, bool steady = true);

  // As long as it lives, what is allocated draws on the micro-batches' memory: of work that takes
  // turns with them. Null where there are no graphs.
  std::unique_ptr<Allocator::Open> share_memory() const;

  // Launches go one by one from here on; `why` is for print().
  void turn_off(std::string why);
  const CudaGraphs& plan() const { return plan_; }  // as it is by now
  // The reason, once, when a capture has failed; else empty.
  std::string take_failure() { return std::exchange(failure_, {}); }
  int64_t replays() const { return replays_; }

 private:
  struct Captured {
    Graph graph;
    MicroBatch inputs;              // that it reads
    std::vector<Parameter*> ready;  // in order: gradients that became whole
    std::vector<bool> fresh;        // afterwards
  };
  // Tokens of input, label and position; which parameters' gradients are overwritten.
  using Key = std::pair<std::vector<int64_t>, std::vector<bool>>;

  bool possible(const MicroBatch& batch, int64_t k) const;
  bool run_as_graph(const MicroBatches& one);  // false: it is to be run without
  void capture(const MicroBatches& one, const Key& key);
  std::vector<bool> fresh();
  void set_fresh(const std::vector<bool>& fresh);

  Stream& compute_;
  ParamStore& params_;
  Pipeline& pipeline_;
  CudaGraphs plan_;
  std::string failure_;
  std::shared_ptr<MemoryPool> pool_;
  ReplayedValues values_;
  std::map<Key, int64_t> runs_;  // without a graph
  std::map<Key, Captured> graphs_;
  int64_t replays_ = 0;
};

}  // namespace mtrain
