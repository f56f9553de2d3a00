#include "checkpoint/needed_files.h"

#include <algorithm>

#include "checkpoint/save_plan.h"

namespace mtrain::checkpoint {

namespace {

using storage::TensorSet;

struct Interval {  // elements [first, end) of a tensor
  int64_t first, end;
  int32_t file;
};

std::vector<Interval> intervals_of(const storage::PiecedTensor& t) {
  std::vector<Interval> all;
  for (const storage::Piece& p : t.pieces)
    for (int64_t k = 0; k < p.run.times; ++k) {
      const int64_t first = p.run.first + k * p.run.stride;
      all.push_back({first, first + p.run.count, p.file});
    }
  std::ranges::sort(all, {}, &Interval::first);
  return all;
}

// Marks the files that have elements of the runs. A tensor that the index lacks is reported by the
// reader.
void mark(const storage::CheckpointIndex& index, TensorSet set, const std::string& name,
          const std::vector<StridedRun>& runs, std::vector<bool>& needed) {
  const auto tensor = index.of(set).find(name);
  if (tensor == index.of(set).end()) return;
  const std::vector<Interval> all = intervals_of(tensor->second);
  for (const StridedRun& run : runs)
    for (int64_t k = 0; k < run.times; ++k) {
      const int64_t from = run.first + k * run.stride, to = from + run.count;
      auto at = std::ranges::upper_bound(all, from, {}, &Interval::first);
      if (at != all.begin()) --at;
      for (; at != all.end() && at->first < to; ++at)
        if (at->end > from) needed[size_t(at->file)] = true;
    }
}

}  // namespace

std::vector<bool> needed_files(const CheckpointParts& t, const storage::CheckpointIndex& index) {
  std::vector<bool> needed(index.files.size());
  const std::vector<optim::StateTensor> state = t.optimizer.state();
  for (const model::Parameter* p : t.params.params()) {
    std::vector<StridedRun> own;
    for (const model::OwnedPart& part : owned_parts(*p))
      for (const StridedRun& run : full_runs(*p, part.in_param, part.count)) own.push_back(run);
    mark(index, TensorSet::weights, p->name, own, needed);
    for (const optim::StateTensor& s : state)
      if (s.values.has(*p)) mark(index, TensorSet::optimizer, p->name + s.suffix, own, needed);
  }
  for (const ReplicatedTensor& r : t.replicated)
    mark(index, r.of_model ? TensorSet::weights : TensorSet::optimizer, r.name,
         {{.first = 0, .count = r.value.count()}}, needed);
  return needed;
}

}  // namespace mtrain::checkpoint
