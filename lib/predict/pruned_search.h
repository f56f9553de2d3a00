// Finds the best of many candidates, whose values are expensive, with the help of bounds that are
// cheap.
#pragma once
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/layout_space.h"

namespace mtrain::predict {

using plan::Refusal;

struct SearchProblem {
  size_t candidates = 0;
  // Returns why a candidate is out, as far as that is cheap to find out.
  std::function<std::optional<Refusal>(size_t)> refuse;
  // Returns no more than the value of a candidate that is not refused. Lower values are better.
  std::function<double(size_t)> bound;
  // A guess of its value, which decides the order in which candidates are played.
  std::function<double(size_t)> guess;
  // Returns its value, or nothing if it is out after all; `why` then says why.
  std::function<std::optional<double>(size_t, Refusal& why)> play;
  // Candidates of a group are variants of the same; the ranking has the best one of each group.
  std::function<size_t(size_t)> group;
  // By how much a candidate differs from what the user has. The examples of reasons differ least.
  std::function<int(size_t)> distance;
  size_t top = 10;  // groups in the ranking
  size_t most_plays = std::numeric_limits<size_t>::max();
};

struct RefusedCandidates {
  size_t count = 0;
  size_t nearest = 0;  // the candidate with the smallest distance
  int distance = 0;
  std::string detail;  // of this candidate
};

struct PlayedCandidate {
  size_t index = 0;
  double value = 0;
};

struct SearchResult {
  std::vector<PlayedCandidate> ranked;               // the best of each group, best first
  std::vector<PlayedCandidate> played;               // all, in the order of their indices
  std::map<std::string, RefusedCandidates> refused;  // by reason
  // Candidates that are not in the ranking, as their bounds prove.
  RefusedCandidates slower;
  // Candidates that were not played because of `most_plays`, and the lowest of their bounds. If
  // there are none, the ranking is that of an exhaustive search.
  RefusedCandidates left;
  double lowest_left = std::numeric_limits<double>::infinity();
};

// Among equal values the lower index is better.
SearchResult pruned_search(const SearchProblem& problem);

}  // namespace mtrain::predict
