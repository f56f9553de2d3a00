// Quantizes the operands of 8-bit GEMMs, and finds the scales for that (recipe:
// mixed_precision.fp8). A linear's input and weight become e4m3, its output's gradient e4m3 or
// e5m2. Current scaling takes the scale from the tensor itself; delayed scaling takes it from the
// maxima of earlier steps, which are state of the training (Micikevicius et al. 2022, "FP8 formats
// for deep learning"). Scales of blocks come from the blocks of the tensor: an input or a gradient
// is quantized apart for each GEMM, along that GEMM's sum. A weight changes once a step, so its
// scale is found once a step, and its 8-bit copies may be kept from one use to the next.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/param/parameters.h"
#include "model/step.h"
#include "ops/ops.h"

namespace mtrain::model {

struct Float8Options {
  DType gradient = DType::f8e5m2;  // element type of the outputs' gradients
  // The blocks that have scales of their own, in inputs and gradients, and in weights; none: a
  // tensor has one scale.
  ScaleBlocks blocks = ScaleBlocks::none, weight_blocks = blocks;
  bool delayed = false;     // delayed scaling; false: current scaling
  int margin = 0;           // a scale is divided by 2^margin
  int64_t history = 1;      // steps whose maxima are kept
  bool most_recent = true;  // scales come from the last step's maximum; false: from the history's
  // Keep 8-bit copies of each weight for forward, and of its transpose for backward: a byte an
  // element each. Experts' weights have one copy for both. A weight without a copy is quantized for
  // every use.
  bool keep_weights = false, keep_transposed = false;
};

class Float8Scaling {
 public:
  enum class Role { input, weight, gradient };

  explicit Float8Scaling(const Float8Options& options) : options_(options) {}

  // Declares a linear and returns its number, which the calls below take as `linear`. `weight`, (O,
  // I) or that of a layer's experts, (E, O, I), must outlive this object.
  int64_t add(const std::string& name, const Parameter& weight);
  // Allocates what is kept from step to step. Call it after all linears are declared.
  void materialize(Stream& stream);

  DType type(Role role) const { return role == Role::gradient ? options_.gradient : DType::f8e4m3; }
  // Returns the scale of an input or a gradient, which is absent if blocks have scales. `x` may be
  // a chunk of that tensor: a delayed scale belongs to the whole tensor, a current scale to the
  // chunk.
  ops::Float8Scale scale(Stream& stream, int64_t linear, Role role, const Tensor& x);
  // Returns what the kernel that writes a linear's next input or gradient does for it. Under
  // current scaling it leaves the largest |x| for scale_of_written(): there is one place for each
  // linear and role, so that the scale must be taken before the next tensor is written. Under
  // delayed scaling, from the second step on, it quantizes the tensor, and with `record` enters its
  // maximum into the history. With scales of blocks it does nothing.
  ops::Float8Write write(int64_t linear, Role role, bool record) const;
  ops::Float8Scale scale_of_written(Stream& stream, Role role, const Tensor& amax) const;
  // Return `x` (M, N) quantized under `scale`: (M, N), or (N, M) if `transposed`. quantize_both()
  // makes both forms in one read of `x`. `record`: the maximum of `x` enters its history.
  ops::Float8Tensor quantize(Stream& stream, int64_t linear, Role role, const Tensor& x,
                             const ops::Float8Scale& scale, bool transposed, bool record);
  ops::Float8Pair quantize_both(Stream& stream, int64_t linear, Role role, const Tensor& x,
                                const ops::Float8Scale& scale, bool record);
  // Returns the linear's quantized weight, or its transpose, of which experts have none. All calls
  // are given the same stream.
  ops::Float8Tensor weight(Stream& stream, int64_t linear, bool transposed, bool record);
  // Says that the kept copies and scales of the weights are out of date.
  void weights_changed();
  // Makes the kept copies and scales of every weight, which no launch within a graph may make.
  void prepare(Stream& stream);
  // Whether every later step launches what this step does. It is false in delayed scaling's first
  // step, and until all experts have had rows: both use current scales.
  bool steady() const { return !options_.delayed || (has_history_ && !waits_for_rows()); }

  // Finds the next step's scales. Call it after the step's update. `over_ranks` replaces a tensor
  // by its maximum over the ranks that compute with other tokens or other parts of the same
  // weights: those of a layer, or of its experts.
  void end_step(Stream& stream,
                const std::function<void(const Tensor& amax, UnitKind of)>& over_ranks);

  // Returns the state for a checkpoint, one line per tensor: of the experts' linears, of the
  // others, or of all. It is empty without delayed scaling, and before the first step ends.
  std::string state(Stream& stream, bool layers = true, bool experts = true) const;
  // Restores what state() returned, which may hold linears of other ranks. Experts that were on
  // several ranks get the largest of their maxima. Throws UserError if a linear of this rank is
  // missing. An empty text (a run without 8-bit linears) changes nothing: the first step then uses
  // current scales.
  void restore(Stream& stream, const std::string& state);

 private:
  struct Weight {
    const Parameter* parameter;
    int64_t place = 0;  // among the linears of its kind, in the order of add()
    // (O, I) and (I, O); absent if they are not kept. Their inverses are kept for blocks alone.
    ops::Float8Tensor copy, transposed;
    ops::Float8Scale scale;  // the current scale; absent for blocks
    // What has been made since the weight changed. `recorded`: its maximum is among this step's.
    bool has_copy = false, has_transposed = false, has_scale = false, recorded = false;

    bool of_experts() const { return parameter->unit->id.kind == UnitKind::experts; }
    // Extents as a matrix: experts' matrices lie one below the other.
    int64_t rows() const { return parameter->shape.count() / columns(); }
    int64_t columns() const { return parameter->shape[parameter->shape.rank() - 1]; }
  };

  // The number of a tensor, below tensors(): the inputs and weights of the D layers' linears
  // alternate, then come their gradients, those of the X experts' linears, and their inputs and
  // weights. So the tensors that are reduced over the same ranks are neighbours, and nearly all of
  // one element type.
  int64_t index(int64_t linear, Role role) const;
  std::string name(int64_t linear, Role role) const;
  bool in_blocks() const { return options_.blocks != ScaleBlocks::none; }
  int64_t tensors() const { return 3 * int64_t(linears_.size()); }
  // Returns the scales of the tensors [begin, end).
  ops::DelayedScales range(int64_t begin, int64_t end) const;
  ops::Float8Scale delayed_scale(int64_t index) const;
  // Whether earlier steps decide the tensor's scale; until then it is the current one.
  bool has_history(int64_t index) const { return has_history_ && !unseen_[size_t(index)]; }
  bool waits_for_rows() const { return std::ranges::find(unseen_, true) != unseen_.end(); }
  void note_rows(Stream& stream);
  // Returns where the tensor's maximum is recorded; absent if it is not recorded.
  Tensor amax(int64_t index, bool record) const;
  ops::Float8Scale weight_scale(Stream& stream, int64_t linear);
  void materialize_blocks(Stream& stream);
  ops::Float8Tensor weight_in_blocks(Stream& stream, Weight& w, bool transposed, bool both);

  const Float8Options options_;
  std::vector<std::string> linears_;
  std::vector<Weight> weights_;             // one for each linear
  int64_t of_layers_ = 0, of_experts_ = 0;  // how many linears there are: D and X
  ops::DelayedScales all_;                  // absent without delayed scaling
  // The largest sizes of inputs and gradients as they are written; 0 between a scale's taking and
  // the next tensor. Absent unless scales are current ones of whole tensors.
  Tensor written_amax_C_;
  bool materialized_ = false;
  int64_t history_index_ = 0;  // the entry that the coming step writes in each ring of maxima
  bool has_history_ = false;   // whether a step has ended; until then scales are current ones
  // By tensor, under delayed scaling: whether it is of experts that have not had a row yet.
  std::vector<bool> unseen_;
};

}  // namespace mtrain::model
