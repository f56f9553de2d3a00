// Rankings of layouts as text for a terminal.
#pragma once
#include <string>

#include "plan/cluster.h"
#include "predict/layout_search.h"

namespace mtrain::predict {

// Returns such as "dp 4, tp 8, pp 16 x 4 interleaved_1f1b, megatron_ddp zero 1, micro-batch 1".
std::string layout_words(const RankedLayout& layout);

// Returns the ranked layouts, those that no other one beats in time and memory, and why the others
// are out. `width` 0: lines have no limit. Throws UserError, with these reasons, if there is none.
std::string ranking_text(const LayoutRanking& ranking, const LayoutSearch& search,
                         const plan::Cluster& cluster, int width);

}  // namespace mtrain::predict
