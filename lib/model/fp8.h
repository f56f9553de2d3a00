// The scales under which linears multiply in 8 bits (recipe: mixed_precision.fp8): of the input and
// the weight in e4m3, of the output's gradient in e4m3 or e5m2. Current scaling takes each from the
// tensor itself; delayed scaling from the maxima of earlier steps, which are state of the training
// (Micikevicius et al. 2022, "FP8 formats for deep learning"). A weight changes once a step: its
// scale is found once, and its 8 bits are kept from use to use where that is asked for.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "model/step.h"
#include "ops/ops.h"

namespace mtrain {

struct Float8Options {
  DType gradient = DType::f8e5m2;
  bool delayed = false;
  int margin = 0;
  int64_t history = 1;      // steps
  bool most_recent = true;  // else the largest of the history
  // 8-bit copies of each weight, for forward and for backward; a byte an element each. Without, it
  // is quantized for every use.
  bool keep_weights = false, keep_transposed = false;
};

class Float8Scaling {
 public:
  enum class Role { input, weight, gradient };

  explicit Float8Scaling(const Float8Options& options) : options_(options) {}

  // Declares a linear, whose weight outlives this; its number.
  int64_t add(const std::string& name, const Parameter& weight);
  // Allocates what is kept from step to step. After all linears are declared.
  void materialize(Stream& on);

  DType type(Role role) const { return role == Role::gradient ? options_.gradient : DType::f8e4m3; }
  // Of an input or a gradient. Of a chunk of a tensor as of the tensor: delayed scales are those of
  // the whole, and current ones of the chunk.
  ops::Float8Scale scale(Stream& on, int64_t linear, Role role, const Tensor& x);
  // Under that scale; as it is, transposed, or both of one read. `record`: the tensor counts in its
  // history.
  ops::Float8Tensor quantize(Stream& on, int64_t linear, Role role, const Tensor& x,
                             const ops::Float8Scale& scale, bool transposed, bool record);
  ops::Float8Pair quantize_both(Stream& on, int64_t linear, Role role, const Tensor& x,
                                const ops::Float8Scale& scale, bool record);
  // The linear's weight, or its transpose; all uses are in the order of one stream.
  ops::Float8Tensor weight(Stream& on, int64_t linear, bool transposed, bool record);
  // What is kept of the weights is out of date.
  void weights_changed();
  // Makes what is kept of every weight: a graph's launches find it there, and do not make it.
  void prepare(Stream& on);
  // Whether every later step launches what this one does: delayed scaling's first does not.
  bool steady() const { return !options_.delayed || has_history_; }

  // After the step's update: the next step's scales. `over_ranks` makes a tensor the largest of all
  // ranks that compute with other tokens or other parts of the same weights.
  void end_step(Stream& on, const std::function<void(const Tensor&)>& over_ranks);

  // What a checkpoint must hold, one line a tensor; empty without delayed scaling, and before the
  // first step ends.
  std::string state(Stream& on) const;
  // UserError where a linear of this rank's is missing. Other linears may be there; an empty text
  // is that of a run without 8 bits: the first step then takes current scales.
  void restore(Stream& on, const std::string& state);

 private:
  struct Weight {
    const Parameter* parameter;
    Tensor copy, transposed;  // (O, I) and (I, O); absent where they are not kept
    ops::Float8Scale scale;   // the current one
    // Of the weight as it is. Recorded: its amax counts in this step's.
    bool has_copy = false, has_transposed = false, has_scale = false, recorded = false;
  };

  // Inputs and weights in turn, then gradients: tensors of one type are neighbours.
  int64_t index(int64_t linear, Role role) const;
  std::string name(int64_t index) const;
  int64_t tensors() const { return 3 * int64_t(linears_.size()); }
  // Of the tensors [begin, end).
  ops::DelayedScales range(int64_t begin, int64_t end) const;
  ops::Float8Scale delayed_scale(int64_t index) const;
  Tensor amax(int64_t index, bool record) const;          // absent where nothing is to be recorded
  ops::Float8Scale scale_of(Stream& on, int64_t linear);  // of its weight

  const Float8Options options_;
  std::vector<std::string> linears_;
  std::vector<Weight> weights_;  // of the linears
  ops::DelayedScales all_;       // of delayed scaling
  bool materialized_ = false;
  // Of the step to come in the ring of histories. Whether a step has ended: without history the
  // scales are current ones.
  int64_t place_ = 0;
  bool has_history_ = false;
};

}  // namespace mtrain
