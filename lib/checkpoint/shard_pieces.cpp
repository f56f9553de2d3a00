#include "checkpoint/shard_pieces.h"

#include <algorithm>
#include <functional>
#include <set>

namespace mtrain::checkpoint {

using storage::TensorSet;

namespace {

// Returns the part of an owned range that a planned run is.
const model::OwnedPart& part_with(const std::vector<model::OwnedPart>& parts,
                                  const PlannedRun& run) {
  const auto part = std::ranges::find_if(parts, [&](const model::OwnedPart& p) {
    return p.in_param <= run.here && run.here + run.full.total() <= p.in_param + p.count;
  });
  MT_CHECK(part != parts.end(), "this rank owns no elements {} + {} of {}", run.here,
           run.full.total(), run.parameter->name);
  return *part;
}

LivePiece live_piece(std::string tensor, const Shape& shape, const StridedRun& run,
                     const Tensor& values) {
  return {{std::move(tensor), shape, run, values.dtype()}, values.flat(0, {values.count()})};
}

}  // namespace

std::vector<LivePiece> live_pieces(const CheckpointParts& t, TensorSet set) {
  const std::vector<optim::StateTensor> state = t.optimizer.state();
  std::vector<SavedKind> kinds;
  std::set<std::string> saved;
  for (const spec::TensorSpec& p : t.parameters) saved.insert(p.name);
  if (set == TensorSet::weights)
    kinds.push_back({"", [&saved](const model::ParamSpec& p) { return saved.count(p.name) > 0; }});
  else
    for (const optim::StateTensor& s : state)
      kinds.push_back(
          {s.suffix, [values = &s.values](const model::ParamSpec& p) { return values->has(p); }});
  std::vector<LivePiece> pieces;
  if (t.control.rank() == 0)
    for (const ReplicatedTensor& r : t.replicated)
      if (r.of_model == (set == TensorSet::weights))
        pieces.push_back(
            live_piece(r.name, r.value.shape(), {.first = 0, .count = r.value.count()}, r.value));
  for (const PlannedRun& run : save_plan(t.params, t.copies, kinds)) {
    const model::Parameter& p = *run.parameter;
    const std::vector<model::OwnedPart> parts = owned_parts(p);
    const model::OwnedPart& part = part_with(parts, run);
    const int64_t in_range = part.in_range + run.here - part.in_param, count = run.full.total();
    const Tensor values = set == TensorSet::weights
                              ? part.range->weights().flat(in_range, {count})
                              : state[run.kind].values.at(*p.unit, *part.range, in_range, count);
    pieces.push_back(live_piece(p.name + kinds[run.kind].suffix, p.full_shape(), run.full, values));
  }
  // Wider types come first in a file, so that all tensors are aligned.
  std::ranges::stable_sort(pieces, std::greater<>(),
                           [](const LivePiece& p) { return dtype_size(p.dtype); });
  return pieces;
}

void await_values(const CheckpointParts& t) {
  for (model::ParamUnit* unit : t.params.units()) own_master(t.data_parallel, *unit);
}

int64_t shard_bytes(const CheckpointParts& t) {
  int64_t bytes = 0;
  for (const TensorSet set : kShardSets)
    for (const LivePiece& p : live_pieces(t, set)) bytes += p.bytes();
  return bytes;
}

}  // namespace mtrain::checkpoint
