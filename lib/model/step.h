// A Step is what a layer is handed: the compute stream, the stash for its activations, the queue
// for its weight gradients, and the shape of the micro-batch. Nothing that a layer needs is global.
#pragma once
#include <any>
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
  // A run of consecutive positions of the whole sequence.
  struct Run {
    int64_t first, count;
  };
  int64_t B = 1, S = 0;  // sequences and the positions of each on this rank; token = s * B + b
  Tensor position_T;     // int32
  // The lengths of the documents that are packed into the whole sequence, where B = 1, and their
  // boundaries as int32, from 0 to the sequence's end. Both are optional.
  std::vector<int64_t> documents;
  Tensor cu_seqlens;
  std::vector<Run> runs;  // this rank's positions; empty: all of the sequence's
  int64_t T() const { return B * S; }
};

struct ParamUnit;
class GraphInputs;

// Is told of every use of a unit's parameters as the work is enqueued, so that code which shards or
// updates parameters can have them there in time. Uses of the same unit may overlap.
class ParamHooks {
 public:
  virtual ~ParamHooks() = default;
  // The unit's values are there for the work that is enqueued until after_forward().
  virtual void before_forward(ParamUnit&) {}
  virtual void after_forward(ParamUnit&) {}
  // Comes before a forward that backward makes again, which ends with after_forward(). The unit
  // `next` (may be null) is used after it.
  virtual void before_recompute(ParamUnit& u, ParamUnit* /*next*/) { before_forward(u); }
  // The unit's values are there, and its gradients to add to.
  virtual void before_backward(ParamUnit&) {}
  // The gradients stay until all of them are ready.
  virtual void after_backward(ParamUnit&) {}
  // The gradients to add to are there, of a unit whose own backward comes later.
  virtual void before_grads(ParamUnit&) {}
  // The unit's values are gathered from here on, and stay through all uses until let_go().
  virtual void pin(ParamUnit&) {}
  virtual void unpin(ParamUnit&) {}
};

struct Step {
  Stream& compute;
  WgradQueue& wgrad;
  Stash& stash;
  const SequenceInfo& seq;
  uint64_t seed = 0;          // of dropout
  int64_t step = 0;           // training step, from 1
  int64_t micro_batch = 0;    // number of the micro-batch in the global batch
  bool training = true;       // false: no dropout, nothing stashed is needed
  ParamHooks* use = nullptr;  // null: all parameters are always there
  // Not null where the launches may be replayed, which then find their values here
  // (model/graph_inputs.h).
  GraphInputs* replayed = nullptr;

  ParamHooks& units() const {
    static ParamHooks whole;
    return use ? *use : whole;
  }

  // Returns the same step with another stash for its activations.
  Step with(Stash& other) const {
    return {.compute = compute,
            .wgrad = wgrad,
            .stash = other,
            .seq = seq,
            .seed = seed,
            .step = step,
            .micro_batch = micro_batch,
            .training = training,
            .use = use,
            .replayed = replayed};
  }
};

// Returns the key of the random numbers that decide what a segment drops in a micro-batch.
uint64_t dropout_key(uint64_t seed, const SegmentId& segment, int64_t step, int64_t micro_batch);

// Drops elements of a segment's (T, H) activation in place; does nothing where p = 0 or outside
// training. What is dropped depends only on (seed, segment, step, micro-batch, element), so that it
// is the same under every layout, and when a forward is recomputed. `first_row` is the number of
// the first of these rows among the micro-batch's.
void drop(Step& step, const Tensor& x_TH, const SegmentId& segment, float p, int64_t first_row);
// Returns the gradient before that dropout. It is a copy, since the residual path still needs the
// gradient after it; without dropout it is d_TH itself.
Tensor drop_backward(Step& step, const Tensor& d_TH, const SegmentId& segment, float p,
                     int64_t first_row);

}  // namespace mtrain::model
