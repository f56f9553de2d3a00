// Tests the rules by which the scale of the loss changes.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "optim/loss_scaler.h"

namespace optim_loss_scaler_test {

using namespace mtrain;
using namespace mtrain::optim;
using Catch::Matchers::Contains;

namespace {

plan::LossScaleOptions dynamic(int64_t window, int64_t hysteresis = 1) {
  return {.on = true, .initial = 1024, .min = 256, .window = window, .hysteresis = hysteresis};
}

}  // namespace

TEST_CASE("without fp16 the scale is 1, whatever happens") {
  LossScaler scaler{plan::LossScaleOptions{}};
  scaler.update(1, true);
  CHECK((!scaler.on() && scaler.scale() == 1));
}

TEST_CASE("the scale doubles after clean steps in a row and halves at an overflow") {
  LossScaler scaler(dynamic(3));
  for (int i = 0; i < 2; ++i) scaler.update(i, false);
  CHECK(scaler.scale() == 1024);
  scaler.update(3, true);
  CHECK(scaler.scale() == 512);
  for (int i = 0; i < 2; ++i) scaler.update(i, false);
  CHECK(scaler.scale() == 512);  // the count starts again
  scaler.update(6, false);
  CHECK(scaler.scale() == 1024);
}

TEST_CASE("hysteresis spares the first overflows since the scale last grew") {
  LossScaler scaler(dynamic(2, 2));
  scaler.update(1, true);
  CHECK(scaler.scale() == 1024);
  scaler.update(2, false);
  scaler.update(3, true);
  CHECK(scaler.scale() == 512);
  scaler.update(4, true);  // the count is used up until the scale grows again
  CHECK(scaler.scale() == 256);
  scaler.update(5, false);
  scaler.update(6, false);
  CHECK(scaler.scale() == 512);
  scaler.update(7, true);
  CHECK(scaler.scale() == 512);
}

TEST_CASE("the scale stops at its minimum, where an overflow is an error") {
  plan::LossScaleOptions options = dynamic(2);
  options.min = 300;
  LossScaler scaler(options);
  scaler.update(1, true);
  scaler.update(2, true);
  CHECK(scaler.scale() == 300);
  CHECK_THROWS_WITH(scaler.update(3, true), Contains("step 3") && Contains("minimum, 300"));
}

TEST_CASE("a fixed scale stays, until too many steps in a row overflow") {
  LossScaler scaler({.on = true, .dynamic = false, .initial = 128, .window = 1});
  for (int64_t i = 1; i < LossScaler::kMaxFixed; ++i) scaler.update(i, true);
  scaler.update(10, false);
  for (int64_t i = 1; i < LossScaler::kMaxFixed; ++i) scaler.update(i, true);
  CHECK(scaler.scale() == 128);
  CHECK_THROWS_WITH(scaler.update(20, true), Contains("10 steps in a row"));
}

TEST_CASE("a saved state reads back exactly") {
  plan::LossScaleOptions options = dynamic(5, 3);
  options.initial = 1000.0 / 3;
  LossScaler saved(options), restored(dynamic(5, 3));
  saved.update(1, false);
  saved.update(2, true);
  saved.update(3, false);
  restored.load(saved.save());
  CHECK((restored.state() == saved.state()));
  CHECK(restored.scale() == 1000.0 / 3);
  CHECK_THROWS_WITH(restored.load("much"), Contains("`much`"));
  LossScaler fixed({.on = true, .dynamic = false, .initial = 8});
  fixed.load(saved.save());
  CHECK(fixed.scale() == 8);  // the initial scale of its options
}

}  // namespace optim_loss_scaler_test
