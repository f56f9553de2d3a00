#include "train/expert_stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/math.h"

namespace mtrain::train {

ExpertStats expert_loads(const std::vector<float>& sums_LS, int64_t layers, int64_t experts,
                         int64_t ranks) {
  const int64_t E = experts, S = exact_div(int64_t(sums_LS.size()), layers),
                here = exact_div(E, ranks);
  ExpertStats stats;
  int64_t with_experts = 0;
  double choices = 0;
  for (int64_t l = 0; l < layers; ++l) {
    const float *count = sums_LS.data() + l * S, *dropped = count + S - E;
    double all = 0, squares = 0, most = 0;
    for (int64_t e = 0; e < E; ++e) {
      all += count[e], squares += double(count[e]) * count[e];
      most = std::max(most, double(count[e]));
    }
    if (all == 0) continue;  // a layer without experts
    choices += all;
    stats.dropped += std::accumulate(dropped, dropped + E, 0.0);
    const double mean = all / double(E);
    stats.load_max = std::max(stats.load_max, most / mean);
    stats.load_variation += std::sqrt(std::max(0.0, squares / double(E) - mean * mean)) / mean;
    stats.dead += std::count(count, count + E, 0.0f);
    const double rows = all - std::accumulate(dropped, dropped + E, 0.0);
    for (int64_t first = 0; rows > 0 && first < E; first += here) {
      double own = 0;  // rows that a rank computes: dropped ones are not sent to it
      for (int64_t e = first; e < first + here; ++e) own += count[e] - dropped[e];
      stats.rank_load_max = std::max(stats.rank_load_max, own / (rows / double(ranks)));
    }
    ++with_experts;
  }
  if (with_experts > 0) stats.load_variation /= double(with_experts), stats.dropped /= choices;
  return stats;
}

}  // namespace mtrain::train
