// Every layer gets a Step: the compute stream, the stash for its activations, the queue for its
// weight gradients, and the shape of the micro-batch. Nothing that a layer needs is global.
#pragma once
#include <any>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "model/param/wgrad_queue.h"
#include "model/segment_id.h"
#include "tensor/tensor.h"

namespace mtrain::model {

// Keeps activations from forward to backward, last in first out. A micro-batch in flight has one
// stash for each stage.
class Stash {
 public:
  template <class T>
  void push(T activations) {
    kept_.push_back(std::move(activations));
  }
  template <class T>
  T pop() {
    MT_CHECK(!kept_.empty(), "backward without a forward");
    T* top = std::any_cast<T>(&kept_.back());
    MT_CHECK(top != nullptr, "backward order does not mirror forward order");
    T out = std::move(*top);
    kept_.pop_back();
    return out;
  }
  bool empty() const { return kept_.empty(); }

 private:
  std::vector<std::any> kept_;
};

struct SequenceInfo {
  // Consecutive positions of the whole sequence.
  struct Run {
    int64_t first, count;
  };
  int64_t B = 1, S = 0;  // sequences and the positions of each on this rank; token = s * B + b
  Tensor position_T;     // int32
  // If documents are packed (then B = 1): their lengths in the whole sequence, and their boundaries
  // as int32, from 0 to the sequence's end. Otherwise empty and absent.
  std::vector<int64_t> documents;
  Tensor cu_seqlens;
  int64_t longest_document = 0;  // no document is longer
  int64_t packs = 0;             // packs that follow each other in the sequence; 0: not packed
  Tensor sample_T;               // int32: each token's sample; absent: token t is of sample t % B
  std::vector<Run> runs;         // this rank's positions; empty: all positions of the sequence
  Tensor valid_T;                // int32: 0 marks a token of padding; absent: there is none
  int64_t T() const { return B * S; }
  int64_t samples() const { return packs > 0 ? packs : B; }
};

struct ParamUnit;
class GraphInputs;
struct ExpertsOfStep;
struct Predictions;

// The stage calls a hook at every use of a unit's parameters, as it enqueues the work. Data
// parallelism implements the hooks: it gathers values, and makes memory for gradients, in time.
// Uses of the same unit may overlap. The defaults fit parameters that are always there.
class ParamHooks {
 public:
  virtual ~ParamHooks() = default;
  // Makes the unit's values readable for all work that is enqueued until after_forward().
  virtual void before_forward(ParamUnit&) {}
  virtual void after_forward(ParamUnit&) {}
  // Is called instead of before_forward() if the forward is a recomputation. The unit `next` (may
  // be null) is used after this one.
  virtual void before_recompute(ParamUnit& u, ParamUnit* /*next*/) { before_forward(u); }
  // Makes the unit's values readable until after_backward(), and its gradients ready to add to
  // until WgradQueue has called all of them complete.
  virtual void before_backward(ParamUnit&) {}
  virtual void after_backward(ParamUnit&) {}
  // Makes the gradients ready to add to, for a unit whose own backward comes later.
  virtual void before_grads(ParamUnit&) {}
  // The unit's values are gathered from pin() on, and stay through all uses until unpin().
  virtual void pin(ParamUnit&) {}
  virtual void unpin(ParamUnit&) {}
};

struct Step {
  Stream& compute;
  WgradQueue& wgrad;
  Stash* stash;
  const SequenceInfo& seq;
  uint64_t seed = 0;            // seed of dropout
  int64_t step = 0;             // training step, from 1
  int64_t micro_batch = 0;      // number of the micro-batch in the global batch
  bool training = true;         // false: no dropout, and nothing stashed is needed
  ParamHooks* hooks = nullptr;  // null: all parameters are always there
  // Not null if a graph may replay the launches: they then read here what differs between
  // micro-batches.
  GraphInputs* graph_inputs = nullptr;
  // Where routers add their losses and loads. Null if no caller reads them; the losses then have no
  // gradient.
  const ExpertsOfStep* experts = nullptr;
  // What multi-token prediction reads, and the depth that is computed, from 1. Null in a stage
  // without it, and outside training.
  const Predictions* predictions = nullptr;
  int64_t depth = 0;
  bool recomputing = false;  // an earlier forward has computed the same already
  // Results of the first forward that its recomputation reuses: numbers that the host had to wait
  // for, and the routers' results if these are kept. Both passes go through the layers in the same
  // order. Null if activations are kept.
  std::deque<std::any>* forward_results = nullptr;
  // Whether tokens may travel to their experts in chunks. False in a pass that computes while
  // another micro-batch's tokens travel.
  bool chunks_experts = true;

  ParamHooks& param_hooks() const {
    static ParamHooks no_hooks;
    return hooks ? *hooks : no_hooks;
  }

  // Returns the same step with another stash for its activations.
  Step with(Stash& other) const {
    Step copy = *this;
    copy.stash = &other;
    return copy;
  }
};

// Returns the key of the random numbers that decide which elements a segment drops in a
// micro-batch. A repeated layer of multi-token prediction drops others at each depth.
uint64_t dropout_key(uint64_t seed, const SegmentId& segment, int64_t step, int64_t micro_batch,
                     int64_t depth = 0);

// The columns [first, first + those of a tensor) of a matrix with `all` columns.
struct ColumnRange {
  int64_t first, all;
};
// Drops elements of an adapter's input in place, in the same way as drop() below: which ones
// depends on the adapter's name, and on the element's index in all columns.
void drop_adapter_input(const Step& step, const Tensor& x_TI, const std::string& adapter, float p,
                        int64_t first_row, const ColumnRange& columns);

// Drops elements of a segment's (T, H) activation in place. Does nothing if p = 0 or outside
// training. Which elements are dropped depends only on (seed, segment, step, micro-batch, element),
// so it is the same under every layout, and in a recomputation. `first_row` is the number of the
// first row of x_TH among this context-parallel rank's rows of the micro-batch.
void drop(Step& step, const Tensor& x_TH, const SegmentId& segment, float p, int64_t first_row);
// Returns the gradient of drop()'s input. It is a copy, since the residual path still needs d_TH;
// without dropout it is d_TH itself.
Tensor drop_backward(Step& step, const Tensor& d_TH, const SegmentId& segment, float p,
                     int64_t first_row);

}  // namespace mtrain::model
