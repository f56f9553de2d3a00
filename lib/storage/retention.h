// Decides which checkpoints stay after a save, or after `mtrain checkpoint prune`.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace mtrain::storage {

// How many checkpoints are kept. A checkpoint that one of the rules keeps stays.
struct KeepRule {
  int newest = 0;     // 0: all
  int best = 0;       // those with the lowest validation loss; 0 does not change `best`
  int64_t every = 0;  // those whose step is a multiple of it; 0: none
};

// The checkpoints of a folder, by their steps. Damaged ones are not among them, and always stay.
struct RetainedFrom {
  std::vector<int64_t> steps;    // complete, in ascending order
  std::vector<int64_t> ranking;  // those with a validation loss, the lowest loss first
  std::set<int64_t> pinned;      // those that `latest` or `best` names, or that a program reads
  std::optional<int64_t> saved;  // the one just saved; it counts as the newest
};

// Returns the steps that stay.
std::set<int64_t> steps_to_keep(const RetainedFrom& from, const KeepRule& rule);

}  // namespace mtrain::storage
