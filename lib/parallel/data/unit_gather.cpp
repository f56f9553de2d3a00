#include "parallel/data/unit_gather.h"

#include "base/error.h"

namespace mtrain::parallel {

namespace {

void copy_own_part(Stream& stream, const Tensor& own, const Tensor& place) {
  const ConstSpan from = own;
  const Span to = place;
  stream.launch({.name = "copy_own_part", .reads = {own}, .writes = {place}},
                [from, to](const device::LaunchContext& c) {
                  copy_on_device(c, to.data, from.data, from.bytes());
                });
}

}  // namespace

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
    const bool in_8_bits = unit.gathered_in_8_bits(piece);
    const Tensor full = in_8_bits ? unit.full_quantized(quantized, piece) : unit.full(value, piece);
    Tensor own = in_8_bits        ? unit.local_quantized(unit.own_quantized, piece)
                 : unit.own_value ? unit.local_shard(unit.own_value, piece)
                                  : unit.shard_in_full(value, piece);
    if (in_place_) {
      const Tensor place = full.flat(owners.rank() * own.count(), own.shape());
      if (place.data() != own.data()) copy_own_part(stream, own, place);
      own = place;
    }
    owners.all_gather(own, full, stream);
  }
}

}  // namespace mtrain::parallel
