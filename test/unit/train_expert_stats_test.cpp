// The loads of experts, from the sums of a step.
#include <cmath>

#include <catch2/catch.hpp>

#include "train/expert_stats.h"

namespace train_expert_stats_test {

using namespace mtrain::train;

TEST_CASE("loads count layers with experts alone, and what is dropped does not travel") {
  // Rows of 4 experts: counts, two other numbers, dropped choices. The second layer has no experts.
  const std::vector<float> sums{8, 4, 4, 0, 9, 9, 4, 0, 0, 0,  //
                                0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                2, 2, 2, 2, 9, 9, 0, 0, 0, 0};
  const ExpertStats s = expert_loads(sums, 3, 4, 2);
  CHECK(s.load_max == 2);
  CHECK(s.load_variation == Approx((std::sqrt(8.0) / 4 + 0) / 2));
  CHECK(s.dead == 1);
  CHECK(s.dropped == Approx(4.0 / 24));
  CHECK(s.rank_load_max == Approx(8.0 / 6));  // 8 of 12 rows on the first of two ranks
}

TEST_CASE("a step whose layers have no experts has no loads") {
  const ExpertStats s = expert_loads(std::vector<float>(20), 2, 4, 1);
  CHECK(s.load_max == 0);
  CHECK(s.load_variation == 0);
  CHECK(s.dropped == 0);
  CHECK(s.rank_load_max == 1);
}

}  // namespace train_expert_stats_test
