// Quantizes the operands of linears' GEMMs, and finds the scales for that (recipe:
// mixed_precision.fp8). Current scaling takes the scale from the tensor itself. Delayed scaling
// takes it from the maxima of earlier steps, which are state of the training (Micikevicius et al.
// 2022, "FP8 formats for deep learning"). Scales of blocks come from the blocks of the tensor: an
// input or a gradient is quantized separately for each GEMM, along that GEMM's sum. A weight
// changes once a step: its scale is found once a step, and its quantized copies may be kept from
// one use to the next. Ranks that share a weight may each quantize their part of it, and gather the
// elements.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/param/parameters.h"
#include "model/step.h"
#include "ops/operand.h"
#include "ops/quantize.h"

namespace mtrain::model {

// An input or an output gradient of a linear, with what its GEMMs have found out about it. Segments
// keep it from forward to backward and pass it on; only linears look inside.
struct LinearOperand {
  ops::Written value;             // absent while it is not kept
  ops::Scale scale = {};          // absent until a GEMM needs it; then all GEMMs take the same
  ops::Operand transposed = {};   // the form that wgrad() reads, if it exists already
  ops::Destination rewrite = {};  // for the kernel that computes `value` again, if it was dropped
  // What the linear's adapters keep for wgrad(): their inner products (T, dim), or the gradients of
  // these.
  std::vector<Tensor> inner = {};

  LinearOperand() = default;
  LinearOperand(ops::Written x) : value(std::move(x)) {}
  LinearOperand(Tensor plain) : value(std::move(plain)) {}
};

struct QuantizerOptions {
  LinearFormats formats;
  bool delayed = false;     // delayed scaling; false: current scaling
  int margin = 0;           // a scale is divided by 2^margin
  int64_t history = 1;      // steps whose maxima are kept
  bool most_recent = true;  // scales come from the last step's maximum; false: from the history's
  // Keep quantized copies of each weight for forward, and of its transpose for backward. Experts'
  // weights have one copy for both. A weight without a copy is quantized for every use.
  bool keep_weights = false, keep_transposed = false;
};

class Quantizer {
 public:
  enum class Role { input, weight, gradient };

  explicit Quantizer(const QuantizerOptions& options) : options_(options) {}

  // Whether one 8-bit form of a weight serves forward and backward: under one scale, or under
  // square blocks. Only then can weights be gathered in 8 bits.
  bool one_form_of_weights() const {
    const ScaleBlocks blocks = options_.formats.weight.blocks;
    return blocks == ScaleBlocks::none || blocks == ScaleBlocks::square_128;
  }

  // Declares a linear and returns its number, which the calls below take as `linear`. `weight`, (O,
  // I) or that of a layer's experts, (E, O, I), must outlive this object.
  int64_t add(const std::string& name, const Parameter& weight);
  // Allocates what is kept from step to step. Call it after all linears are declared.
  void materialize(Stream& stream);

  // Returns what the kernel that writes a linear's next input or gradient does for the linear.
  // Under current scaling the kernel finds the tensor's maximum. Each linear and role has memory
  // for one maximum, so the operand must be quantized before the next one is written. Under delayed
  // scaling, from the second step on, the kernel quantizes the tensor, and with `record` enters its
  // maximum into the history. With scales of blocks it does nothing.
  ops::Destination destination(int64_t linear, Role role, bool record) const;
  // Returns an input or a gradient as a GEMM reads it, along its rows. `record`: its maximum enters
  // the history, unless its kernel has entered it.
  ops::Operand rows(Stream& stream, int64_t linear, Role role, LinearOperand& x, bool record) const;
  // Returns its transpose, for the weight's gradient.
  ops::Operand columns(Stream& stream, int64_t linear, Role role, LinearOperand& x) const;
  // Does both in one read of x: returns the rows, and leaves the transpose in x.transposed.
  ops::Operand rows_and_columns(Stream& stream, int64_t linear, Role role, LinearOperand& x,
                                bool record) const;
  // Returns the linear's quantized weight, or its transpose. Experts have no transpose. All calls
  // take the same stream.
  ops::Operand weight(Stream& stream, int64_t linear, bool transposed, bool record);
  // Quantizes this rank's part of the weights of a unit that is gathered in 8 bits
  // (Sharding::quantized): own_value -> own_quantized. `over_owners` replaces each maximum by the
  // largest over the ranks that own the other parts. Call it after each change of the weights, and
  // let `compute` wait for it before it reads them. Delayed scales are those of the coming step.
  void quantize_owned(Stream& stream, const ParamUnit& unit,
                      const std::function<void(const Tensor& amax)>& over_owners);
  // Marks the kept copies and scales of the weights as out of date.
  void weights_changed();
  // Makes the kept copies and scales of every weight, which no launch within a graph may make.
  void prepare(Stream& stream);
  // Whether every later step launches what this step does. It is false in delayed scaling's first
  // step, and until all experts have had rows: both use current scales.
  bool steady() const { return !options_.delayed || (has_history_ && !waits_for_rows()); }

  // Computes the next step's delayed scales. Call it between the step's last backward and its
  // update: weights that are gathered in 8 bits take the new scales right after the update.
  // `over_ranks` replaces each maximum by the largest over the ranks that compute with other tokens
  // or with other parts of the same weights. For experts these may be other ranks than for the rest
  // of a layer. `grad_scale` (fp32, one element, optional) is not finite if the update changes
  // nothing; histories then forget the step.
  void end_step(Stream& stream,
                const std::function<void(const Tensor& amax, UnitKind of)>& over_ranks,
                const Tensor& grad_scale = {});

  // Forgets the maxima of a step that does not end, before its weights change.
  void drop_maxima(Stream& stream);

  // Returns the state for a checkpoint, one line per tensor. It has the experts' linears, the
  // others, or all. It is empty without delayed scaling, and before the first step ends.
  std::string state(Stream& stream, bool layers = true, bool experts = true) const;
  // Restores what state() returned, which may hold linears of other ranks. Experts that were on
  // several ranks get the largest of their maxima. Throws UserError if a linear of this rank is
  // missing. An empty text (a run without 8-bit linears) changes nothing: the first step then uses
  // current scales.
  void restore(Stream& stream, const std::string& state);

 private:
  struct Weight {
    const Parameter* parameter;
    int64_t place = 0;              // among the linears of its kind, in the order of add()
    ops::Operand copy, transposed;  // (O, I) and (I, O); absent if they are not kept
    ops::Scale scale;               // the current scale; absent for blocks
    // If it is gathered in 8 bits: what quantize_owned() finds out about the full weight. It is the
    // maximum, or the inverses of the blocks' scales, which replace the blocks' maxima.
    Tensor found;
    // What was made since the weight changed. `recorded`: its maximum is among this step's.
    bool has_copy = false, has_transposed = false, has_scale = false, recorded = false;

    bool of_experts() const { return parameter->unit->id.kind == UnitKind::experts; }
    bool gathered() const { return parameter->unit->sharding.quantized.has_value(); }
    // Extents as a matrix: experts' matrices lie one below the other.
    int64_t rows() const { return parameter->shape.count() / columns(); }
    int64_t columns() const { return parameter->shape[parameter->shape.rank() - 1]; }
  };

  // Returns the number of a tensor, below tensors(). First the inputs and weights of the D layers'
  // linears alternate; their gradients follow. Then come the gradients of the X experts' linears,
  // and their inputs and weights. Thus the tensors that are reduced over the same ranks are
  // neighbours, and nearly all of one element type.
  int64_t index(int64_t linear, Role role) const;
  std::string name(int64_t linear, Role role) const;
  QuantFormat format(Role role) const {
    const LinearFormats& f = options_.formats;
    return role == Role::input ? f.input : role == Role::weight ? f.weight : f.gradient;
  }
  DType type(Role role) const { return format(role).element; }
  bool in_blocks() const { return !options_.formats.input.outer_scale(); }
  int64_t tensors() const { return 3 * int64_t(linears_.size()); }
  // Returns the scales of the tensors [begin, end).
  ops::DelayedScales range(int64_t begin, int64_t end) const;
  ops::Scale delayed_scale(int64_t index) const;
  // Sets x.scale, if it is absent and the format needs it.
  void find_scale(Stream& stream, int64_t linear, Role role, LinearOperand& x) const;
  // Whether earlier steps decide the tensor's scale; until then it is the current one.
  bool has_history(int64_t index) const { return has_history_ && !unseen_[size_t(index)]; }
  bool waits_for_rows() const { return std::ranges::find(unseen_, true) != unseen_.end(); }
  void note_rows(Stream& stream);
  // Returns where the tensor's maximum is recorded; absent if it is not recorded.
  Tensor amax(int64_t index, bool record) const;
  ops::Scale weight_scale(Stream& stream, int64_t linear);
  ops::Operand gathered_weight(Stream& stream, int64_t linear, bool transposed);
  int64_t linear_of(const Parameter& weight) const;
  // Throws while a graph is captured. A graph is replayed for every micro-batch, but the scales and
  // copies of weights are made once a step.
  static void refuse_capture(Stream& stream);
  // Allocates what quantize_owned() needs.
  void materialize_gathered(Stream& stream);
  // Finds the scales that need the maxima of the weights themselves: all, but for delayed scales
  // with a history.
  void find_owned_scales(Stream& stream, const ParamUnit& unit,
                         const std::function<void(const Tensor& amax)>& over_owners);

  const QuantizerOptions options_;
  std::vector<std::string> linears_;
  std::vector<Weight> weights_;             // one for each linear
  int64_t of_layers_ = 0, of_experts_ = 0;  // how many linears there are: D and X
  ops::DelayedScales all_;                  // absent without delayed scaling
  // The largest |x| of inputs and gradients, which their kernels write. Taking a scale resets it to
  // 0. Absent unless scales are current ones of full tensors.
  Tensor written_amax_C_;
  // Weight::found of all weights of a unit. Their maxima are reduced together.
  std::map<const ParamUnit*, Tensor> found_;
  bool materialized_ = false;
  int64_t history_index_ = 0;  // the entry that the coming step writes in each ring of maxima
  bool has_history_ = false;   // whether a step has ended; until then scales are current ones
  // By tensor, under delayed scaling: whether it belongs to experts that have not had a row yet.
  std::vector<bool> unseen_;
};

// The quantizer of one linear's operands. Without a Quantizer it passes plain numbers on.
class LinearQuantizer {
 public:
  using Role = Quantizer::Role;

  LinearQuantizer(std::shared_ptr<Quantizer> all, const std::string& name, const Parameter& weight)
      : all_(std::move(all)), weight_(&weight), number_(all_ ? all_->add(name, weight) : 0) {}

  bool quantizes() const { return bool(all_); }
  ops::Destination destination(Role role, bool record) const {
    return all_ ? all_->destination(number_, role, record) : ops::Destination{};
  }
  ops::Operand rows(Stream& stream, Role role, LinearOperand& x, bool record) const {
    return all_ ? all_->rows(stream, number_, role, x, record) : x.value.plain;
  }
  ops::Operand columns(Stream& stream, Role role, LinearOperand& x) const {
    return all_ ? all_->columns(stream, number_, role, x) : x.value.plain;
  }
  ops::Operand weight(Stream& stream, bool transposed, bool record) const {
    return all_ ? all_->weight(stream, number_, transposed, record) : weight_->value;
  }

  // Returns the input for forward's GEMM, and reduces x to what backward needs.
  ops::Operand input(Step& step, LinearOperand& x) const;
  // Returns the gradient for dgrad's GEMM, and reduces dy to what wgrad needs. `bias`: wgrad needs
  // its plain numbers, too.
  ops::Operand gradient(Step& step, LinearOperand& dy, bool bias) const;

 private:
  std::shared_ptr<Quantizer> all_;
  const Parameter* weight_;
  int64_t number_;
};

}  // namespace mtrain::model
