// What a layer is handed: the streams, where to keep activations, where to leave weight gradients,
// and the shape of the micro-batch. Nothing a layer needs is global.
#pragma once
#include <any>
#include <string>
#include <utility>
#include <vector>

#include "model/wgrad_queue.h"
#include "tensor/tensor.h"

namespace mtrain {

// Activations kept from forward to backward, last in first out; one per micro-batch in flight.
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
  // Optional, B = 1: lengths of the documents packed into the whole sequence, and their boundaries
  // as int32, from 0 to its end.
  std::vector<int64_t> documents;
  Tensor cu_seqlens;
  std::vector<Run> runs;  // this rank's positions, where ranks share the sequence; empty: all
  int64_t T() const { return B * S; }
};

struct ParamUnit;
class ReplayedValues;

// Told of every use of a unit's parameters, as its work is enqueued: what shards or renews
// parameters has them there in time. Uses of the same unit may overlap.
class UnitUse {
 public:
  virtual ~UnitUse() = default;
  virtual void before_forward(ParamUnit&) {}  // its values are there for what comes
  virtual void after_forward(ParamUnit&) {}
  // The same for a forward that backward makes again; `next` (may be null) comes after it. It ends
  // with after_forward().
  virtual void before_recompute(ParamUnit& u, ParamUnit* /*next*/) { before_forward(u); }
  virtual void before_backward(ParamUnit&) {}  // values, and gradients to add to
  virtual void after_backward(ParamUnit&) {}   // gradients stay until they are ready
  // Gradients to add to, of a unit whose own backward comes later.
  virtual void before_grads(ParamUnit&) {}
  // Its values are on their way from here on, and stay through all uses until they are let go.
  virtual void keep(ParamUnit&) {}
  virtual void let_go(ParamUnit&) {}
};

struct Step {
  Stream& compute;
  WgradQueue& wgrad;
  Stash& stash;
  const SequenceInfo& seq;
  uint64_t seed = 0;                   // of dropout
  int64_t step = 0;                    // training step, from 1
  int64_t micro_batch = 0;             // number of the micro-batch in the global batch
  bool training = true;                // false: no dropout, nothing stashed is needed
  UnitUse* use = nullptr;              // null: all parameters are always there
  ReplayedValues* replayed = nullptr;  // not null: its launches may be replayed (model/replayed.h)

  UnitUse& units() const {
    static UnitUse whole;
    return use ? *use : whole;
  }

  // The same step, whose activations go to another stash.
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

// Of the stream of numbers that decides what `place` drops in a micro-batch.
uint64_t dropout_key(uint64_t seed, const std::string& place, int64_t step, int64_t micro_batch);

// Dropout of a (T, H) activation in place; nothing where p = 0 or outside training. The numbers
// depend on (seed, place, step, micro-batch, element) alone: the same under every layout, and when
// a forward is recomputed. `first_row`: of these rows among the micro-batch's.
void drop(Step& step, const Tensor& x_TH, const std::string& place, float p, int64_t first_row);
// The gradient before that dropout: a copy, for the residual path still needs the one after it;
// `d_TH` itself without dropout.
Tensor drop_backward(Step& step, const Tensor& d_TH, const std::string& place, float p,
                     int64_t first_row);

}  // namespace mtrain
