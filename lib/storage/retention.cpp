#include "storage/retention.h"

#include <algorithm>

namespace mtrain::storage {

std::set<int64_t> steps_to_keep(const RetainedFrom& from, const KeepRule& rule) {
  if (rule.newest == 0) return {from.steps.begin(), from.steps.end()};
  std::set<int64_t> kept = from.pinned;
  if (from.saved) kept.insert(*from.saved);
  int newest = from.saved ? 1 : 0;
  for (auto step = from.steps.rbegin(); step != from.steps.rend() && newest < rule.newest; ++step)
    if (from.saved != *step) kept.insert(*step), ++newest;
  const size_t best = std::min(from.ranking.size(), size_t(rule.best));
  kept.insert(from.ranking.begin(), from.ranking.begin() + std::ptrdiff_t(best));
  for (const int64_t step : from.steps)
    if (rule.every > 0 && step % rule.every == 0) kept.insert(step);
  return kept;
}

}  // namespace mtrain::storage
