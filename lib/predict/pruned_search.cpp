#include "predict/pruned_search.h"

#include <algorithm>
#include <set>
#include <utility>

namespace mtrain::predict {

namespace {

class PrunedSearch {
 public:
  explicit PrunedSearch(const SearchProblem& problem) : problem_(problem) {}

  SearchResult run() {
    for (size_t i = 0; i < problem_.candidates; ++i) {
      if (const auto refusal = problem_.refuse(i))
        refuse(i, *refusal);
      else
        open_.push_back({i, problem_.bound(i), problem_.guess(i)});
    }
    std::ranges::stable_sort(open_, {}, &Open::guess);
    // The likely best of each group first, so that a limit on plays leaves no group out.
    std::set<size_t> groups;
    const auto others = std::stable_partition(open_.begin(), open_.end(), [&](const Open& open) {
      return groups.insert(problem_.group(open.index)).second;
    });
    std::for_each(open_.begin(), others, [&](const Open& first) { visit(first); });
    std::for_each(others, open_.end(), [&](const Open& other) { visit(other); });
    for (const auto& [group, best] : best_) result_.ranked.push_back(best);
    std::ranges::sort(result_.ranked, better);
    if (result_.ranked.size() > problem_.top) result_.ranked.resize(problem_.top);
    std::ranges::sort(result_.played, {}, &PlayedCandidate::index);
    return std::move(result_);
  }

 private:
  struct Open {
    size_t index;
    double bound, guess;
  };

  static bool better(const PlayedCandidate& a, const PlayedCandidate& b) {
    return std::pair{a.value, a.index} < std::pair{b.value, b.index};
  }

  void visit(const Open& candidate) {
    const size_t i = candidate.index, group = problem_.group(i);
    const auto own = best_.find(group);
    if (candidate.bound > limit() || (own != best_.end() && candidate.bound > own->second.value))
      return void(count(result_.slower, i));
    if (plays_ == problem_.most_plays) {
      result_.lowest_left = std::min(result_.lowest_left, candidate.bound);
      return void(count(result_.left, i));
    }
    Refusal why;
    const std::optional<double> value = problem_.play(i, why);
    if (!value) return refuse(i, why);
    ++plays_;
    const PlayedCandidate played{i, *value};
    result_.played.push_back(played);
    const auto [at, added] = best_.try_emplace(group, played);
    if (!added && better(played, at->second)) at->second = played;
  }

  // Returns the value that a group's best must not exceed to be in the ranking.
  double limit() const {
    if (best_.size() < problem_.top) return std::numeric_limits<double>::infinity();
    std::vector<double> values;
    for (const auto& [group, best] : best_) values.push_back(best.value);
    const auto last = values.begin() + std::ptrdiff_t(problem_.top) - 1;
    std::ranges::nth_element(values, last);
    return *last;
  }

  void refuse(size_t i, const Refusal& refusal) {
    RefusedCandidates& all = result_.refused[refusal.reason];
    if (count(all, i)) all.detail = refusal.detail();
  }
  // Counts a candidate, and returns whether it is the nearest one so far.
  bool count(RefusedCandidates& all, size_t i) const {
    const int distance = problem_.distance(i);
    if (all.count++ > 0 && distance >= all.distance) return false;
    all.nearest = i;
    all.distance = distance;
    return true;
  }

  const SearchProblem& problem_;
  SearchResult result_;
  std::vector<Open> open_;
  std::map<size_t, PlayedCandidate> best_;  // by group
  size_t plays_ = 0;
};

}  // namespace

SearchResult pruned_search(const SearchProblem& problem) { return PrunedSearch(problem).run(); }

}  // namespace mtrain::predict
