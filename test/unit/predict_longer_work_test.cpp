// Work beside computations, whose times a reader can add up.
#include <vector>

#include <catch2/catch.hpp>

#include "predict/longer_work.h"

namespace predict_longer_work_test {

using namespace mtrain::predict;

using Computing = std::vector<ComputingTime>;

TEST_CASE("work takes longer until the computations beside it end") {
  // In 4 s a third of the 4 s is done three times as slowly; the rest takes 4 - 4/3 s.
  CHECK(longer_beside(0, 4, Computing{{0, 4}}, 2) == Approx(4 - 4.0 / 3));
  // All of it is beside.
  CHECK(longer_beside(0, 4, Computing{{0, 20}}, 2) == Approx(8));
  CHECK(longer_beside(5, 4, Computing{{0, 20}}, 2) == Approx(8));
  CHECK(longer_beside(0, 4, Computing{{0, 20}}, 0) == 0);
  CHECK(longer_beside(0, 4, Computing{}, 2) == 0);
}

TEST_CASE("longer work runs into the next computation") {
  // Until 3 s a second of work is done, and until 4 s another one; 4 s of the computation at 4 s do
  // the other two at half the speed.
  CHECK(longer_beside(1, 4, Computing{{1, 3}, {4, 20}}, 1) == Approx(8 - 5));
  // Without the first computation it ends when the other one begins.
  CHECK(longer_beside(1, 3, Computing{{4, 20}}, 1) == 0);
  CHECK(longer_beside(1, 3, Computing{{0, 1}, {4, 20}}, 1) == 0);
}

TEST_CASE("work is as slow as the computations beside it take of the time") {
  // For a half of each second it works at half the speed, so 3/4 of a second's work is done.
  CHECK(longer_beside(0, 3, Computing{{0, 20, 0.5}}, 1) == Approx(1));
  CHECK(longer_beside(0, 3, Computing{{0, 2, 0.5}, {2, 20, 0}}, 1) == Approx(0.5));
}

}  // namespace predict_longer_work_test
