#include "parallel/data/unit_gather.h"

#include "base/error.h"

namespace mtrain::parallel {

void UnitGather::quantize(model::ParamUnit& unit, const Event& updated) const {
  if (!unit.sharding.quantized) return;
  MT_CHECK(quantizer_, "{} is gathered in 8 bits without a quantizer", unit.name);
  Stream& stream = *groups_.param_stream;
  stream.wait(updated);  // edge: the unit's update, and the GEMMs before it -> new elements, scales
  quantizer_->quantize_owned(stream, unit, [&](const Tensor& amax) {
    groups_.of(unit).gather.all_reduce(amax, comm::Reduce::max, stream);
  });
}

void UnitGather::gather(const model::ParamUnit& unit, const Tensor& value,
                        const Tensor& quantized) const {
  Stream& stream = *groups_.param_stream;
  const Group& owners = groups_.of(unit).gather;
  for (const model::Piece& piece : unit.pieces) {
    if (unit.gathered_in_8_bits(piece))
      owners.all_gather(unit.local_quantized(unit.own_quantized, piece),
                        unit.full_quantized(quantized, piece), stream);
    else
      owners.all_gather(unit.own_value ? unit.local_shard(unit.own_value, piece)
                                       : unit.shard_in_full(value, piece),
                        unit.full(value, piece), stream);
  }
}

}  // namespace mtrain::parallel
