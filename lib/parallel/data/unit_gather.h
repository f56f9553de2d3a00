// Gathers the full values of a unit from the ranks that own its parts, in the compute dtype or in 8
// bits. In 8 bits the bytes of a weight are half of those in bf16, and the GEMMs read what a gather
// in bf16 and quantize() would give them: a rank quantizes its own part once after each update,
// with the scale of the full weight. For that scale the ranks also exchange the largest |x| of
// their parts.
#pragma once
#include "model/quantizer.h"
#include "parallel/data/data_groups.h"

namespace mtrain::parallel {

class UnitGather {
 public:
  // `quantizer` may be null if no unit is gathered in 8 bits.
  // With `in_place`, this rank's part is first copied to its place among the others: NCCL's copy
  // engines need both ends of a gather in registered memory.
  UnitGather(const DataGroups& groups, model::Quantizer* quantizer, bool in_place = false)
      : groups_(groups), quantizer_(quantizer), in_place_(in_place) {}

  // Quantizes this rank's part of the weights that are gathered in 8 bits, if the unit has any, on
  // param_stream. `updated` is the end of the update.
  void quantize(model::ParamUnit& unit, const Event& updated) const;
  // Gathers all pieces of the unit, on param_stream, into flat tensors of the unit's elements in
  // the compute dtype and in 8 bits. If the rank's own part has no memory of its own, it lies in
  // `value`.
  void gather(const model::ParamUnit& unit, const Tensor& value, const Tensor& quantized) const;

 private:
  const DataGroups& groups_;
  model::Quantizer* const quantizer_;
  const bool in_place_;
};

}  // namespace mtrain::parallel
