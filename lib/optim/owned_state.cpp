#include "optim/owned_state.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace mtrain::optim {

std::vector<Segment> segments_of(
    const model::ParamUnit& unit,
    const std::function<std::optional<int>(const model::Parameter&)>& number) {
  struct Extent {
    int64_t begin, end;  // elements of the unit, the padding after the parameter included
    std::optional<int> number;
  };
  std::vector<Extent> extents;
  for (const model::Piece& piece : unit.pieces) {
    const size_t first = extents.size();
    for (const model::Parameter* p : piece.params) {
      if (extents.size() > first) extents.back().end = p->begin;
      extents.push_back({p->begin, piece.begin + piece.count, number(*p)});
    }
  }
  std::vector<Segment> segments;
  for (const model::OwnedRange& range : unit.owned)
    for (const Extent& e : extents) {
      const int64_t begin = std::max(e.begin, range.begin),
                    end = std::min(e.end, range.begin + range.count);
      if (begin >= end || !e.number) continue;
      Segment* last = segments.empty() ? nullptr : &segments.back();
      if (last && last->range == &range && last->number == *e.number &&
          last->in_range + last->count == begin - range.begin)
        last->count += end - begin;
      else
        segments.push_back({&range, begin - range.begin, end - begin, *e.number});
    }
  return segments;
}

OwnedState::OwnedState(Stream& stream, model::ParamStore& params, DType dtype, Has has)
    : dtype_(dtype),
      has_([has = std::move(has)](const model::ParamSpec& p) { return !p.frozen && has(p); }) {
  for (const model::ParamUnit* unit : params.units()) {
    Unit& u = units_[unit];
    int64_t count = 0;
    for (const Segment& s : segments_of(*unit, [&](const model::Parameter& p) {
           return has_(p) ? std::optional(0) : std::nullopt;
         })) {
      int64_t in_own = s.in_range;
      for (const model::OwnedRange* r = unit->owned.data(); r != s.range; ++r) in_own += r->count;
      u.parts.push_back({s, count, in_own});
      count += s.count;
    }
    if (count == 0) continue;
    u.tensor = Tensor::empty(stream, {count}, dtype, device::MemoryCategory::optimizer);
    ops::fill(stream, u.tensor, 0);
  }
}

const OwnedState::Unit& OwnedState::of(const model::ParamUnit& unit) const {
  const auto at = units_.find(&unit);
  MT_CHECK(at != units_.end(), "unit {} is unknown to the optimizer", unit.name);
  return at->second;
}

Tensor OwnedState::at(const model::ParamUnit& unit, const model::OwnedRange& range,
                      int64_t in_range, int64_t count) const {
  const Unit& u = of(unit);
  const auto part = std::ranges::find_if(u.parts, [&](const Part& p) {
    return p.segment.range == &range && p.segment.in_range <= in_range &&
           in_range + count <= p.segment.in_range + p.segment.count;
  });
  MT_CHECK(part != u.parts.end(), "elements of unit {} have no such state", unit.name);
  return u.tensor.flat(part->first + in_range - part->segment.in_range, {count});
}

Tensor OwnedState::own(Stream& stream, const model::ParamUnit& unit) const {
  const Unit& u = of(unit);
  if (u.tensor && u.tensor.count() == unit.own_count()) return u.tensor;
  const Tensor own =
      Tensor::empty(stream, {unit.own_count()}, dtype_, device::MemoryCategory::buffers);
  ops::fill(stream, own, 0);
  for (const Part& p : u.parts)
    ops::cast(stream, u.tensor.flat(p.first, {p.segment.count}),
              own.flat(p.in_own, {p.segment.count}));
  return own;
}

void OwnedState::set(model::ParamUploader& uploader, const model::Parameter& p,
                     const model::ReadElements& read) const {
  uploader.set(p, read, [&](const model::OwnedPart& part) {
    return at(*p.unit, *part.range, part.in_range, part.count);
  });
}

}  // namespace mtrain::optim
