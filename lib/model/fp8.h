// Quantizes the operands of 8-bit GEMMs, and finds the scales for that (recipe:
// mixed_precision.fp8). A linear's input and weight become e4m3, its output's gradient e4m3 or
// e5m2. Current scaling takes the scale from the tensor itself; delayed scaling takes it from the
// maxima of earlier steps, which are state of the training (Micikevicius et al. 2022, "FP8 formats
// for deep learning"). A weight changes once a step, so that its scale is found once; its 8-bit
// copies may be kept from one use to the next, too.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/param/parameters.h"
#include "model/step.h"
#include "ops/ops.h"

namespace mtrain::model {

struct Float8Options {
  DType gradient = DType::f8e5m2;  // what the outputs' gradients become
  bool delayed = false;
  int margin = 0;
  int64_t history = 1;      // in steps
  bool most_recent = true;  // a scale is made of the last step's maximum; else of the history's
  // Keep 8-bit copies of each weight for forward, and of its transpose for backward: a byte an
  // element each. A weight without a copy is quantized for every use.
  bool keep_weights = false, keep_transposed = false;
};

class Float8Scaling {
 public:
  enum class Role { input, weight, gradient };

  explicit Float8Scaling(const Float8Options& options) : options_(options) {}

  // Declares a linear, whose weight must outlive this, and returns its number, which the calls
  // below take as `linear`.
  int64_t add(const std::string& name, const Parameter& weight);
  // Allocates what is kept from step to step. To be called after all linears are declared.
  void materialize(Stream& stream);

  DType type(Role role) const { return role == Role::gradient ? options_.gradient : DType::f8e4m3; }
  // Returns the scale of an input or a gradient. `x` may be a chunk of it: a delayed scale is that
  // of the whole tensor, a current one that of the chunk.
  ops::Float8Scale scale(Stream& stream, int64_t linear, Role role, const Tensor& x);
  // Return `x` under that scale: (M, N), or (N, M) if `transposed`; quantize_both() makes both of
  // one read. `record`: the tensor's maximum enters its history.
  ops::Float8Tensor quantize(Stream& stream, int64_t linear, Role role, const Tensor& x,
                             const ops::Float8Scale& scale, bool transposed, bool record);
  ops::Float8Pair quantize_both(Stream& stream, int64_t linear, Role role, const Tensor& x,
                                const ops::Float8Scale& scale, bool record);
  // Returns the linear's weight (O, I), or its transpose; all uses are in the order of one stream.
  ops::Float8Tensor weight(Stream& stream, int64_t linear, bool transposed, bool record);
  // Says that the kept copies and scales of the weights are out of date.
  void weights_changed();
  // Makes the kept copies and scales of every weight, so that no launch within a graph makes them.
  void prepare(Stream& stream);
  // Whether every later step launches what this one does. Delayed scaling's first step does not.
  bool steady() const { return !options_.delayed || has_history_; }

  // Finds the next step's scales; to be called after the step's update. `over_ranks` makes a tensor
  // the maximum over the ranks that compute with other tokens or other parts of the same weights.
  void end_step(Stream& stream, const std::function<void(const Tensor&)>& over_ranks);

  // Returns what a checkpoint must hold, one line a tensor; empty without delayed scaling, and
  // before the first step ends.
  std::string state(Stream& stream) const;
  // Takes over what state() has returned. UserError if a linear of this rank is missing; others may
  // be there. After an empty text, which is that of a run without 8 bits, the first step takes
  // current scales.
  void restore(Stream& stream, const std::string& state);

 private:
  struct Weight {
    const Parameter* parameter;
    Tensor copy, transposed;  // (O, I) and (I, O); absent if they are not kept
    ops::Float8Scale scale;   // the current one
    // What has been made of the weight since it changed. `recorded`: its maximum is in this step's.
    bool has_copy = false, has_transposed = false, has_scale = false, recorded = false;
  };

  // The place of a tensor among tensors(): inputs and weights in turn, then gradients, so that
  // tensors of one type are neighbours.
  int64_t index(int64_t linear, Role role) const;
  std::string name(int64_t index) const;
  int64_t tensors() const { return 3 * int64_t(linears_.size()); }
  // Returns the scales of the tensors [begin, end).
  ops::DelayedScales range(int64_t begin, int64_t end) const;
  ops::Float8Scale delayed_scale(int64_t index) const;
  Tensor amax(int64_t index, bool record) const;  // absent where nothing is to be recorded
  ops::Float8Scale weight_scale(Stream& stream, int64_t linear);

  const Float8Options options_;
  std::vector<std::string> linears_;
  std::vector<Weight> weights_;  // one for each linear
  ops::DelayedScales all_;       // absent without delayed scaling
  bool materialized_ = false;
  int64_t place_ = 0;         // of the coming step in the ring of histories
  bool has_history_ = false;  // a step has ended; scales are current ones until then
};

}  // namespace mtrain::model
