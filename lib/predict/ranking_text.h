// Rankings of layouts as text for a terminal.
#pragma once
#include <string>

#include "plan/cluster.h"
#include "predict/layout_search.h"

namespace mtrain::predict {

// Returns the ranked layouts, those that no other one beats in time and memory, and why the others
// are out. `width` 0: lines have no limit. Throws UserError, with these reasons, if there is none.
std::string ranking_text(const LayoutRanking& ranking, const LayoutSearch& search,
                         const plan::Cluster& cluster, int width);

}  // namespace mtrain::predict
