// Rankings of layouts as text for a terminal.
#pragma once
#include <string>

#include "plan/cluster.h"
#include "predict/layout_search.h"

namespace mtrain::predict {

// Throws UserError, which says why layouts are out, if none is ranked. `width` 0: lines have no
// limit.
void check_ranked(const LayoutRanking& ranking, const plan::Cluster& cluster, int width);
// Returns such as "dp 8, tp 4, fsdp2, micro-batch 1".
std::string layout_words(const RankedLayout& layout);
std::string duration_text(double seconds);  // "1.23 s", "45.6 ms"

// Returns the ranked layouts, those that no other one beats in time and memory, and why the others
// are out. At least one layout must be ranked.
std::string ranking_text(const LayoutRanking& ranking, const LayoutSearch& search,
                         const plan::Cluster& cluster, int width);

}  // namespace mtrain::predict
