// Weights that are gathered in 8 bits: each rank quantizes its part, under the scale of the whole.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/quantizer.h"
#include "ops/elementwise.h"

namespace mtrain::model {

namespace {

// Calls f(parameter, part, x, q) for each part of a weight that this rank owns: its place in the
// weight, its values, and the memory of its 8-bit elements.
template <class F>
void for_owned_weights(const ParamUnit& unit, const F& f) {
  for (const Piece& piece : unit.pieces) {
    if (!unit.gathered_in_8_bits(piece)) continue;
    const int64_t n = piece.count / unit.sharding.ranks,
                  first = piece.begin + unit.sharding.rank * n;
    const Tensor values = unit.local_shard(unit.own_value, piece),
                 elements = unit.local_quantized(unit.own_quantized, piece);
    for (const Parameter* p : piece.params) {
      const int64_t columns = p->columns(), rows = p->shape.count() / columns,
                    from = std::max(p->begin, first),
                    to = std::min(p->begin + rows * columns, first + n);
      if (from >= to) continue;
      const auto part = [&](const Tensor& t) { return t.flat(from - first, {to - from}); };
      f(*p, ops::PartOfMatrix{from - p->begin, rows, columns}, part(values), part(elements));
    }
  }
}

}  // namespace

int64_t Quantizer::linear_of(const Parameter& weight) const {
  const auto at = std::ranges::find(weights_, &weight, &Weight::parameter);
  MT_CHECK(at != weights_.end(), "{} is no linear's weight", weight.name);
  return at - weights_.begin();
}

void Quantizer::materialize_gathered(Stream& stream) {
  const QuantFormat format = this->format(Role::weight);
  const auto maxima = [&](const Weight& w) {
    return in_blocks() ? format.scales(w.rows(), w.columns()) : 1;
  };
  for (const Weight& w : weights_) {
    const ParamUnit* const unit = w.parameter->unit;
    if (!w.gathered() || gathered_amax_.contains(unit)) continue;
    int64_t n = 0;
    for (const Weight& other : weights_)
      if (other.parameter->unit == unit) n += maxima(other);
    const Tensor all = Tensor::empty(stream, {n}, DType::f32, device::MemoryCategory::buffers);
    gathered_amax_[unit] = all;
    int64_t first = 0;
    for (Weight& other : weights_) {
      if (other.parameter->unit != unit) continue;
      other.gathered_amax = all.flat(first, {maxima(other)});
      first += maxima(other);
    }
  }
}

void Quantizer::find_owned_scales(Stream& stream, const ParamUnit& unit,
                                  const std::function<void(const Tensor& amax)>& over_owners) {
  const Tensor& all = gathered_amax_.at(&unit);
  ops::fill(stream, all, 0);
  for_owned_weights(
      unit, [&](const Parameter& p, const ops::PartOfMatrix& part, const Tensor& x, const Tensor&) {
        const Tensor& amax = weights_[size_t(linear_of(p))].gathered_amax;
        if (in_blocks())
          ops::amax_of_part(stream, part, x, amax);
        else
          ops::amax_into(stream, x, amax);
      });
  over_owners(all);
  if (in_blocks()) return ops::inverses_of_amax(stream, all, type(Role::weight));
  for (const Weight& w : weights_)
    if (w.parameter->unit == &unit)
      ops::scale_from_amax_into(stream, w.gathered_amax, type(Role::weight), options_.margin,
                                w.scale);
}

void Quantizer::quantize_owned(Stream& stream, const ParamUnit& unit,
                               const std::function<void(const Tensor& amax)>& over_owners) {
  bool known = !in_blocks();  // whether the histories decide all scales
  for (size_t linear = 0; linear < weights_.size(); ++linear) {
    Weight& w = weights_[linear];
    if (w.parameter->unit != &unit) continue;
    const int64_t i = index(int64_t(linear), Role::weight);
    known = known && has_history(i);
    w.has_transposed = false;
    // Values that no step has trained with leave no trace in the history.
    const Tensor amax = this->amax(i, true);
    if (w.recorded) ops::fill(stream, amax, 0);
    w.recorded = bool(amax);
  }
  if (!known) find_owned_scales(stream, unit, over_owners);
  for_owned_weights(unit, [&](const Parameter& p, const ops::PartOfMatrix& part, const Tensor& x,
                              const Tensor& q) {
    const int64_t linear = linear_of(p), i = index(linear, Role::weight), n = x.count();
    const Weight& w = weights_[size_t(linear)];
    if (in_blocks()) return ops::quantize_part(stream, part, x, w.gathered_amax, q);
    ops::quantize_into(stream, x.view({1, n}), has_history(i) ? delayed_scale(i) : w.scale,
                       ops::Operand(q.view({1, n})), {}, amax(i, true));
  });
}

ops::Operand Quantizer::gathered_weight(Stream& stream, int64_t linear, bool transposed) {
  Weight& w = weights_[size_t(linear)];
  const int64_t i = index(linear, Role::weight);
  const Tensor inverse = in_blocks()      ? w.gathered_amax
                         : has_history(i) ? delayed_scale(i).inverse
                                          : w.scale.inverse;
  const ops::Operand rows(w.parameter->quantized_value.view({w.rows(), w.columns()}), inverse,
                          format(Role::weight).blocks);
  if (!transposed) return rows;
  if (!w.transposed) return ops::transpose_quantized(stream, rows);
  if (!in_blocks()) w.transposed.inverse = inverse;
  if (std::exchange(w.has_transposed, true)) return w.transposed;
  refuse_capture(stream);
  ops::transpose_quantized_into(stream, rows, w.transposed);
  return w.transposed;
}

}  // namespace mtrain::model
